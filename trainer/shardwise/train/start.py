"""From a resolved job to a state on the devices and compiled programs: fresh, restored, or forked.

Called by `shardwise.train.main`. All processes of a run take the same way here, and agree on what they found. XLA
compiles in threads while data are prepared and a checkpoint is read, since none of them needs the others.
"""

import json
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.stages import Compiled

from shardwise.job.accelerators import xla_flags
from shardwise.job.contract import Phase, cache_directory, checkpoint_root
from shardwise.job.errors import CheckpointError, DataError, RunDirectoryError, StorageError
from shardwise.job.identity import Difference, differences, identity
from shardwise.job.spec import TrainingJob
from shardwise.train.checkpoint import Manifest, Restored, import_lister, read_manifest, restore, set_aside, steps
from shardwise.train.config import GptConfig
from shardwise.train.data.dataset import Dataset, prepare
from shardwise.train.data.tokenizer import load_tokenizer
from shardwise.train.devices import devices_of
from shardwise.train.digest import Digester, combine, to_hex
from shardwise.train.executables import Executables
from shardwise.train.layout import Layout
from shardwise.train.optimizer import masters_paths
from shardwise.train.phases import Phases
from shardwise.train.processes import Processes
from shardwise.train.run_directory import RunDirectory
from shardwise.train.state import Program, State, flat, unflat
from shardwise.train.step import lower_evaluation, lower_step

Report = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Start:
    """All that the step loop needs."""

    job: TrainingJob
    program: Program
    data: Dataset
    identity: dict[str, Any]
    root: str
    step: Compiled
    evaluation: Compiled | None
    digester: Digester
    kept: Executables
    state: State
    first_step: int
    restored_from: Manifest | None
    """What the checkpoint holds that the run goes on from."""
    set_aside: list[int]
    """Steps of the checkpoints that the run has gone back from; known to the process that writes."""
    initial_digest: str | None
    forked: bool
    left_out: tuple[int, ...]
    """Batches that the run has left out by itself, ascending; those of the job are beside them."""
    refused: frozenset[int]
    """Steps whose checkpoints were damaged, so that saving them again replaces them."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the command line adds to the job."""

    fork: bool = False
    """Go on from the checkpoint though the run's identity differs."""
    step: int | None = None
    """The checkpoint to start from, by name; the newest usable one otherwise."""
    committed: int | None = None
    """The newest one that this very run is known to have; None where it may have none."""


def build(job: TrainingJob, devices: list[jax.Device], *, tokenizer_size: int | None = None) -> Program:
    """The program of a resolved job on these devices. Reads the tokenizer where its size is not given, no data."""
    training = job.spec.training
    size = load_tokenizer(training.data.tokenizer).vocab_size if tokenizer_size is None else tokenizer_size
    config = GptConfig.of(training, tokenizer_size=size, platform=devices[0].platform)
    _refuse_vocabulary(config, size, training.mesh.tensor)
    return Program.of(training, Layout.of(training, devices), config, xla_flags(job))


def _refuse_vocabulary(config: GptConfig, tokenizer_size: int, tensor: int) -> None:
    """What a job file cannot say before its tokenizer has been read."""
    if config.vocab_size < tokenizer_size:
        raise DataError(
            f"spec.training.model.vocabSize: given {config.vocab_size}, expected at least {tokenizer_size}, the size "
            "of the tokenizer; leave it out to take the tokenizer's"
        )
    if config.Vocab.size % tensor:
        sizes = range(1, config.num_heads + 1)
        fitting = [str(size) for size in sizes if config.num_heads % size == 0 and config.Vocab.size % size == 0]
        raise DataError(
            f"spec.training.mesh.tensor: given {tensor}, expected a size that divides the vocabulary of "
            f"{config.Vocab.size} entries (padded) and the heads: {', '.join(fitting)}"
        )


def start(
    job: TrainingJob,
    run: RunDirectory,
    phases: Phases,
    options: Options,
    processes: Processes,
    report: Report,
) -> Start:
    """Prepare everything up to the first step.

    Raises:
        DataError, CheckpointError, RunDirectoryError: see `shardwise.job.errors`; nothing was changed.

    """
    training = job.spec.training
    program = build(job, devices_of(job))
    root = checkpoint_root(training.checkpoint.path, run.path)
    pool = ThreadPoolExecutor(2, thread_name_prefix="compile")
    if processes.writes:
        pool.submit(import_lister, root)
    try:
        with phases.entered(Phase.COMPILE):
            kept = Executables(job, program.config, processes.rank)
            step, evaluation, digester = _compiling(program, pool, kept)
        with phases.entered(Phase.DATA):
            data = prepare(
                training.data,
                seq_len=program.config.seq_len,
                seed=training.seed,
                cache_root=cache_directory(),
                report=report,
                beat=phases.beat,
            )
        _same_data(data, processes)
        own = identity(job, data_fingerprint=data.fingerprint)
        newest = _newest_manifest(root, processes)
        forked = _differs(run, root, newest, job.metadata.name, own, options)
        with phases.entered(Phase.COMPILE):
            digest = digester.result()
        imported = newest is not None and newest.kind == "weights"
        filled = replace(options, fork=options.fork or imported)
        state, restored = _state(program, root, filled, phases, digest, kept, processes, report)
        with phases.entered(Phase.COMPILE):
            compiled = step.result()
            compiled_evaluation = None if evaluation is None else evaluation.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)  # a refusal or a stop does not wait for the compiler
    aside = [] if options.step is None or not processes.writes else set_aside(root, options.step)
    first_step = restored.step if restored else 0
    if first_step:
        initial_digest = run.read_summary().get("initialDigest")
    else:
        initial_digest = combine(to_hex(digest(flat(state)), partial(processes.agree, "initial")))
    if processes.writes:
        run.write_identity(own)
    return Start(
        job=job,
        program=program,
        data=data,
        identity=own,
        root=root,
        step=compiled,
        evaluation=compiled_evaluation,
        digester=digest,
        kept=kept,
        state=state,
        first_step=first_step,
        restored_from=restored.manifest if restored else None,
        set_aside=aside,
        initial_digest=initial_digest,
        forked=forked,
        left_out=_left_out(run, restored, processes),
        refused=frozenset(step for step, _ in restored.refused) if restored else frozenset(),
    )


def _left_out(run: RunDirectory, restored: Restored | None, processes: Processes) -> tuple[int, ...]:
    """As the directory says, where the last attempt wrote it, or the checkpoint, which may be in another one now."""
    own = {*run.read_left_out(), *(restored.manifest.history.left_out if restored else ())} if processes.writes else ()
    return tuple(json.loads(processes.exchange("left out", json.dumps(sorted(own)))[0]))


def _same_data(data: Dataset, processes: Processes) -> None:
    """Every host reads the data by itself; they must all have found the same."""
    found = processes.exchange("data", data.fingerprint)
    others = [rank for rank, fingerprint in enumerate(found) if fingerprint != found[0]]
    if others:
        raise DataError(
            f"data.train: the hosts see different data: the fingerprint is {found[0]} on rank 0 and {found[others[0]]} "
            f"on rank {others[0]}; expected the same files on every host"
        )


def _compiling(
    program: Program, pool: ThreadPoolExecutor, kept: Executables
) -> tuple[Future[Compiled], Future[Compiled] | None, Future[Digester]]:
    """In threads: XLA leaves Python alone while it compiles, and reading a program that was kept waits for the disk."""
    step = pool.submit(kept.get, "step", partial(lower_step, program))
    digester = pool.submit(Digester, flat(program.abstract()), kept.get)
    evaluated = program.training.evaluation.every_steps is not None
    evaluation = pool.submit(kept.get, "evaluation", partial(lower_evaluation, program)) if evaluated else None
    return step, evaluation, digester


def _differs(
    run: RunDirectory, root: str, newest: Manifest | None, name: str, own: dict[str, Any], options: Options
) -> bool:
    """Whether this job is another run than the one the directory holds, which needs --fork."""
    if newest and newest.kind == "state" and newest.run != name and not options.fork:
        raise RunDirectoryError(
            f"{root} holds the checkpoints of the run {newest.run!r}, and this job is {name!r}; give another "
            "checkpoint.path or --dir, or go on from them as a new run with --fork"
        )
    held = dict(newest.identity) if newest else run.read_identity()
    changed = [change for change in differences(held, own) if change.path in held]
    if changed and not options.fork:
        raise RunDirectoryError(_changed(root if newest else str(run.path), changed))
    return bool(changed)


def _newest_manifest(root: str, processes: Processes) -> Manifest | None:
    """The newest one that rank 0 can read; another host may not see yet, or still, what is there."""
    found = _newest_readable(root) if processes.writes else None
    told = processes.exchange("newest", "" if found is None else str(found.step))[0]
    if found is not None or not told:
        return found
    return read_manifest(root, int(told))


def _newest_readable(root: str) -> Manifest | None:
    for step in reversed(steps(root)):
        try:
            return read_manifest(root, step)
        except CheckpointError:  # it is refused by name when the state is restored
            continue
    return None


def _changed(place: str, changed: list[Difference]) -> str:
    lines = "\n".join(f"  {change}" for change in changed)
    return (
        f"{place} holds a run that differs from this job in what a run is:\n{lines}\n"
        "Go on as a new run from its newest checkpoint with --fork, undo the change, or give another checkpoint.path "
        "or --dir."
    )


def _state(
    program: Program,
    root: str,
    options: Options,
    phases: Phases,
    digester: Digester,
    kept: Executables,
    processes: Processes,
    report: Report,
) -> tuple[State, Restored | None]:
    """The state to start from. Restoring never initialises first; a fork or an import fills in what it lacks."""
    abstract = program.abstract()
    with phases.entered(Phase.RESTORE):
        restored = restore(
            root,
            flat(abstract),
            step=options.step,
            digester=digester,
            agree=partial(processes.agree, "restore"),
            report=lambda step, reason: report(f"checkpoint of step {step} refused: {reason}"),
            partial=options.fork,
            beat=phases.beat,
        )
    if restored is None:
        if options.committed is not None:
            raise StorageError(
                f"{root} holds no checkpoint, and this run has saved step {options.committed} there: its volume may "
                "not be mounted. To begin anew where they were deleted, give the command again"
            )
        with phases.entered(Phase.INIT):
            return _initial(program, kept), None
    if not restored.missing:
        return unflat(abstract, restored.arrays), restored
    with phases.entered(Phase.INIT):
        fresh = flat(_initial(program, kept))
    # The weights themselves are not begun anew with an optimizer that keeps them: they are the parameters' values.
    masters = {
        theirs: restored.arrays[own].astype(jnp.float32)
        for own, theirs in masters_paths(program.names).items()
        if theirs in restored.missing and own in restored.arrays
    }
    anew = len(restored.missing) - len(masters)
    report(f"step {restored.step}: restored, but for {anew} arrays that it lacks and that start anew")
    return unflat(abstract, fresh | restored.arrays | masters), restored


def _initial(program: Program, kept: Executables) -> State:
    state: State = kept.get("init", program.lower_init)()
    jax.block_until_ready(state)
    return state
