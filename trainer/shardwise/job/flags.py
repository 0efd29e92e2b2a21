"""Options of XLA's compiler: those of an accelerator class, those of a job, which of them are refused, and why.

They reach the compiler with each program, not through the environment: an option that it does not know is then an error
with a name, where an unknown one in XLA_FLAGS ends the process.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

Value = str | bool

_TRUTHS = {"true": True, "false": False}
# What the compiler takes for true, in any case.
YES = ("true", "t", "yes", "y", "1")
# Wrong together: the first, and any that begins with the second.
OVERLAP = "xla_tpu_overlap_compute_collective_tc"
FUSION = "xla_tpu_enable_async_collective_fusion"
OVERLAP_WITH_FUSION = "gave not-a-number without a word (jax-ml/jax#38741)"

REFUSED: Mapping[str, str] = {
    "xla_force_host_platform_device_count": "the number of simulated devices is hardware.topology's",
    "xla_tpu_spmd_rng_bit_generator_unsafe": "initial weights and dropout would depend on the mesh",
}
# What only says when and where something runs. Any other option may change bits, and with them what a run is.
SCHEDULES = (
    "xla_enable_async_",
    "xla_gpu_enable_latency_hiding_scheduler",
    "xla_gpu_enable_highest_priority_async_stream",
    "xla_gpu_enable_command_buffer",
    "xla_gpu_enable_pipelined_",
    "xla_gpu_enable_while_loop_double_buffering",
    "xla_gpu_all_gather_combine_threshold_bytes",
    "xla_latency_hiding_scheduler_",
    "xla_tpu_enable_async_collective_fusion",
    "xla_tpu_enable_latency_hiding_scheduler",
    "xla_dump_",
)


def options(flags: Iterable[str]) -> dict[str, Value]:
    """Return name and value of each flag, as `jax.jit` takes them; the last one of a name wins."""
    found: dict[str, Value] = {}
    for flag in flags:
        name, given, value = flag.removeprefix("--").partition("=")
        found[name] = _TRUTHS.get(value.lower(), value) if given else True
    return found


def refusals(flags: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield each flag that may not be set, with the reason; `flags` are all that a program is compiled with."""
    flags = list(flags)
    given = options(flags)
    for flag in flags:
        name = next(iter(options([flag])))
        if name in REFUSED:
            yield flag, REFUSED[name]
    fused = [name for name, value in given.items() if name.startswith(FUSION) and _is_on(value)]
    if _is_on(given.get(OVERLAP, False)) and fused:
        yield f"--{OVERLAP}", f"together with --{fused[0]} it {OVERLAP_WITH_FUSION}"


def repeated(flags: Iterable[str]) -> list[str]:
    """Return the options that `flags` give more than once, sorted."""
    counts = Counter(flag.partition("=")[0] for flag in flags)
    return sorted(name for name, count in counts.items() if count > 1)


def changing_bits(flags: Iterable[str]) -> list[str]:
    """Return those of a job's flags that may change the bits of a result, sorted; the others only schedule."""
    return sorted(flag for flag in flags if not flag.removeprefix("--").startswith(SCHEDULES))


def _is_on(value: Value) -> bool:
    return value is True or str(value).lower() in YES
