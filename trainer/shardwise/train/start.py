"""From a resolved job to compiled programs and a state on the devices: everything before the first step.

All processes of a run take the same path through this file, and agree on what they find. XLA compiles in threads while
data are prepared and a checkpoint is read, since none of the three needs the others.
"""

import math
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
from jax.stages import Compiled

from shardwise.job.accelerators import xla_flags
from shardwise.job.identity import identity
from shardwise.job.spec import Training, TrainingJob
from shardwise.job.topology import divisors
from shardwise.protocol.contract import Phase, checkpoint_root
from shardwise.protocol.errors import DataError
from shardwise.protocol.orders import Orders
from shardwise.protocol.text import any_of
from shardwise.train.bad_steps import NO_PAST, Past
from shardwise.train.base import Base
from shardwise.train.checkpoint import Manifest, prepare_bucket, set_aside
from shardwise.train.compiling import compiling, sizes_of
from shardwise.train.completions import Completions, completing
from shardwise.train.config import GptConfig
from shardwise.train.data.dataset import Dataset
from shardwise.train.data.evaluation_sets import Evaluated
from shardwise.train.data.tokenizer import load_tokenizer
from shardwise.train.data.vocabulary import least_vocab_size
from shardwise.train.devices import devices_of
from shardwise.train.digest import Digester, combine, to_hex
from shardwise.train.evaluation import Programs
from shardwise.train.executables import Executables
from shardwise.train.first_state import FirstState
from shardwise.train.jax_private import load_in_order
from shardwise.train.layout import Layout
from shardwise.train.local_checkpoints import Neighbours
from shardwise.train.origin import origin_of
from shardwise.train.own_checkpoints import newest_of_run
from shardwise.train.peers import Peers
from shardwise.train.phases import Phases
from shardwise.train.resume import Show, is_fork, left_out_batches, note_identity, without_going_back_again
from shardwise.train.run_data import evaluated_on, prepared, same_data
from shardwise.train.run_directory import RunDirectory
from shardwise.train.state import Program, State, flat, without_base


@dataclass(frozen=True, kw_only=True)
class Start:
    """Everything that the step loop needs."""

    job: TrainingJob
    program: Program
    data: Dataset
    evaluated: tuple[Evaluated, ...]
    """What is evaluated on; nothing if no evaluation is due."""
    identity: dict[str, Any]
    root: str
    steps: Mapping[int, Compiled]
    """The step, by the sequences of a batch: those of the run from here on, and that after the ramp."""
    evaluation: Programs
    completions: Completions | None
    """What makes the batches of a run that learns from rewards."""
    digester: Digester
    kept: Executables
    state: State
    first_step: int
    restored_from: Manifest | None
    """The manifest of the checkpoint that the run continues from."""
    own_step: int | None
    """The step of that checkpoint if the run has saved it; None before its first save."""
    saved_step: int | None
    """The same of what is saved where the job says, which a local checkpoint is not."""
    restored_locally: bool
    set_aside: list[int]
    """Steps of the checkpoints that the run has gone back from; known to the writing process alone."""
    initial_digest: str | None
    forked: bool
    left_out: tuple[int, ...]
    """Batches that the run itself has left out, ascending; the job may name others."""
    refused: frozenset[int]
    """Steps whose checkpoints were damaged, so that saving them again replaces them."""

    @property
    def step(self) -> Compiled:
        """The step after the ramp, which takes the most memory."""
        return self.steps[self.program.training.batch.sequences]

    @property
    def past(self) -> Past:
        """What steps are judged by: nothing in a fork, or from another run, whose losses may be of other data."""
        if self.restored_from is None or self.own_step is None or self.forked:
            return NO_PAST
        history = self.restored_from.history
        return Past(losses=history.losses, skipped=history.skipped)


def build(job: TrainingJob, devices: list[jax.Device], *, tokenizer_size: int | None = None) -> Program:
    """Return the program of a resolved job on these devices. Read no data, and the tokenizer only if no size is given.

    From here on this process loads kept programs with their collectives in order.

    Raises:
        DataError: the vocabulary fits neither the tokenizer nor the mesh.
    """
    load_in_order()
    training = job.spec.training
    size = load_tokenizer(training.data.tokenizer).vocab_size if tokenizer_size is None else tokenizer_size
    config = GptConfig.of(training, tokenizer_size=size, platform=devices[0].platform)
    _check_vocabulary(config, size, training, len(devices))
    return Program.of(training, Layout.of(training, devices), config, xla_flags(job))


def _check_vocabulary(config: GptConfig, tokenizer_size: int, training: Training, num_devices: int) -> None:
    """Refuse what the rules of the job file cannot see before the tokenizer has been read."""
    if config.vocab_size < tokenizer_size and config.vocab_size < (least := least_vocab_size(training.data)):
        raise DataError(
            f"spec.training.model.vocabSize: given {config.vocab_size}, expected at least {least}, the size "
            "of the tokenizer; leave it out to take the tokenizer's, or give weights that are there their own"
        )
    if config.Vocab.size % training.mesh.tensor:
        split = (
            config.num_heads,
            config.num_kv_heads,
            config.mlp_size,
            config.shared_size,
            config.KvDown.size if config.is_latent else 0,
            config.q_rank,
            config.dense_mlp_size,
            config.Vocab.size,
            num_devices,
        )
        raise DataError(
            f"spec.training.mesh.tensor: given {training.mesh.tensor}, expected a size that divides the vocabulary of "
            f"{config.Vocab.size} entries (padded), the heads, kvHeads, mlp and the devices: "
            f"{any_of(divisors(math.gcd(*split)))}"
        )


def start(
    job: TrainingJob,
    run: RunDirectory,
    phases: Phases,
    orders: Orders,
    peers: Peers,
    show: Show,
    neighbours: Neighbours | None = None,
) -> Start:
    """Prepare everything up to the first step; `neighbours` have local checkpoints, if the job makes any.

    Raises:
        DataError, CheckpointError, RunDirectoryError: see `shardwise.protocol.errors`; nothing was changed.
    """
    training = job.spec.training
    program = build(job, devices_of(job))
    root = checkpoint_root(training.checkpoint.path, run.path)
    pool = ThreadPoolExecutor(2, thread_name_prefix="compile")
    pool.submit(prepare_bucket, root, lists=peers.writes)
    try:
        with phases.entered(Phase.COMPILE):
            kept = Executables(job, program.config, peers.rank)
            steps, evaluation, digester = compiling(program, pool, kept)
        with phases.entered(Phase.DATA):
            data = prepared(training, peers, phases, show)
            evaluated = evaluated_on(training, data, program.config.seq_len, show, phases)
        same_data(data, evaluated, peers)
        completions = completing(job, program, data, evaluated, kept, pool) if training.reinforcement else None
        base = Base.of(job, peers)
        own = identity(job, data_fingerprint=data.fingerprint) | (base.identity if base else {})
        newest = newest_of_run(run, job, root, orders, peers)
        forked = is_fork(run, root, newest, job.metadata.name, own, orders)
        orders = without_going_back_again(run, newest, orders, peers, show, forked=forked)
        with phases.entered(Phase.COMPILE):
            digest = digester.result()
        origin = origin_of(job, root, own, newest, orders, peers)
        first = FirstState(program, orders, phases, digest, kept, peers, show)
        local = first.of_local(neighbours, job.metadata.name, own, newest) if neighbours else None
        state, restored = local or first.of(origin)
        if base is not None:
            state |= base.restored(program, own, kept.get, peers, phases, show)
        goes_on = restored if restored and (local or not origin.weights_only) else None
        first_step = goes_on.step if goes_on else 0
        with phases.entered(Phase.COMPILE):
            due = {*sizes_of(training).sizes(first_step, training.steps), training.batch.sequences}
            compiled = {size: steps[size].result() for size in due}
            programs = Programs(**{name: each.result() for name, each in evaluation.items()})
            completes = completions(peers, phases) if completions else None
    finally:
        pool.shutdown(wait=False, cancel_futures=True)  # a refusal or a stop does not wait for the compiler
    # Only now that the earlier checkpoint has been restored: a failure before this leaves the later ones committed.
    aside = [] if orders.step is None or not peers.writes else set_aside(root, orders.step)
    is_own = local is not None or origin.is_own
    own_step = first_step if is_own and first_step else None
    if first_step:
        initial_digest = run.read_summary().get("initialDigest")
    else:
        initial_digest = combine(to_hex(digest(flat(without_base(state))), partial(peers.agree, "initial")))
    left_out = left_out_batches(run, goes_on, own, peers)
    if peers.writes:
        note_identity(run, own, first_step, orders.step)
    return Start(
        job=job,
        program=program,
        data=data,
        evaluated=evaluated,
        identity=own,
        root=root,
        steps=compiled,
        evaluation=programs,
        completions=completes,
        digester=digest,
        kept=kept,
        state=state,
        first_step=first_step,
        restored_from=goes_on.manifest if goes_on else None,
        own_step=own_step,
        saved_step=(newest.step or None if newest else None) if local else own_step,
        restored_locally=local is not None,
        set_aside=aside,
        initial_digest=initial_digest,
        forked=forked,
        left_out=left_out,
        refused=frozenset(step for step, _ in restored.refused) if restored and is_own else frozenset(),
    )
