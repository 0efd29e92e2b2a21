"""Errors of the machine, the devices and the compiler, turned into errors that tell a person what to do.

XLA, CUDA's driver and the TPU runtime raise plain RuntimeErrors, so their texts are matched. Anything that is not
recognised is a bug of ours and keeps its traceback.
"""

import errno
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import jax
import jaxlib.version

from shardwise.job.flags import options
from shardwise.job.spec import TrainingJob
from shardwise.protocol.contract import ExitCode
from shardwise.protocol.errors import CompilerError, DeviceError, OutOfMemoryError, PeerError, RunDirectoryError
from shardwise.protocol.storage import first_line, in_words, may_pass
from shardwise.train.work import Work

_REFUSED = (errno.EFBIG, errno.EROFS)
_PEER_IS_GONE = ("Gloo", "closed by peer", "NCCL", "nccl")
_DEVICE_HAS_FAILED = re.compile(
    r"Unable to initialize backend|core halted|CUDA_ERROR_(ECC_UNCORRECTABLE|NVLINK_UNCORRECTABLE|DEVICE_UNAVAILABLE"
    r"|NO_DEVICE|DEVICES_UNAVAILABLE|HARDWARE_STACK_ERROR|CONTAINED|EXTERNAL_DEVICE|SYSTEM_NOT_READY"
    r"|SYSTEM_DRIVER_MISMATCH|UNKNOWN)\b"
)
"""What JAX, the TPU runtime and CUDA's driver report when no program is to blame. An illegal address is not included:
a program can cause it."""
_FOR_ROWS = "Raise batch.microbatches, lower batch.sequences or model.seqLen, or use more devices"
_FOR_COMPLETIONS = (
    "Raise batch.microbatches, since a device completes as many prompts at once as a microbatch has rows, down to a "
    "least number; shorten model.seqLen, which is how long a cache of keys and values is, and with it "
    "reinforcement.maxTokens; or use more devices"
)
_WRONG_FLAG = re.compile(r"No such compile option: '(\w+)'|While setting option (\w+), .*")  # XLA's texts


@contextmanager
def user_errors(job: TrainingJob, directory: Path) -> Iterator[None]:
    """Raise failures of the machine and wrong compiler flags as errors of `shardwise.protocol.errors`."""
    try:
        yield
    except OSError as error:
        if not may_pass(error) and error.errno not in _REFUSED:
            raise
        message = (
            f"{error.filename or directory}: cannot be used ({error.strerror or error}). Committed checkpoints are "
            "untouched: make room, or mend what is wrong, then run the same command again to go on from the newest"
        )
        raise in_words(error, message, RunDirectoryError) from error
    except (MemoryError, RuntimeError) as error:
        # The order matters: NCCL reports a device's CUDA error too, and the device is then the cause.
        if _DEVICE_HAS_FAILED.search(str(error)):
            raise DeviceError(f"a device of {socket.gethostname()} has failed: {first_line(error)}") from error
        if any(text in str(error) for text in _PEER_IS_GONE):
            raise PeerError(f"another process of the run is gone: {first_line(error)}") from error
        if wrong := _WRONG_FLAG.search(str(error)):
            raise CompilerError(_flag_message(job, wrong)) from error
        if not _is_out_of_memory(error):
            raise
        raise OutOfMemoryError(_memory_message(error)) from error


def exit_code_of(error: BaseException) -> ExitCode:
    """Return the exit code for an error of a program of which nothing is known; 1 unless it is one of the machine's."""
    if not isinstance(error, MemoryError | RuntimeError):
        return ExitCode.FAILURE
    if _DEVICE_HAS_FAILED.search(str(error)):
        return ExitCode.DEVICE
    if any(text in str(error) for text in _PEER_IS_GONE):
        return ExitCode.PEER
    return ExitCode.OUT_OF_MEMORY if _is_out_of_memory(error) else ExitCode.FAILURE


def _is_out_of_memory(error: BaseException) -> bool:
    return isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error)


def _memory_message(error: BaseException) -> str:
    work = Work.of_error(error)
    where = f" for {work}" if work else ""
    said = first_line(error) or "the host has no memory left"
    change = _FOR_COMPLETIONS if work == Work.COMPLETIONS else _FOR_ROWS
    return f"out of memory{where}: {said}. {change}; committed checkpoints are untouched"


def _flag_message(job: TrainingJob, wrong: re.Match[str]) -> str:
    name = wrong[1] or wrong[2]
    own = name in options(job.spec.training.xla_flags)
    whose = "training.xlaFlags" if own else f"compiler.flags of the class {job.spec.hardware.accelerator}"
    compiler = f"XLA's compiler for {jax.default_backend().upper()}s in jaxlib {jaxlib.version.__version__}"
    reason = "has no such option" if wrong[1] else "says: " + wrong[0].rstrip(".")
    return f"{whose}: given --{name}, and {compiler} {reason}; correct it, or leave it out"
