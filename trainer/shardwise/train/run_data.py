"""What a run trains on and what it is evaluated on, prepared by each host and the same on all."""

import hashlib
import json
from collections.abc import Sequence

from shardwise.job.spec import Training
from shardwise.protocol.cache import cache_directory
from shardwise.protocol.errors import DataError
from shardwise.protocol.evaluated import HELD_OUT
from shardwise.train.data.dataset import Dataset, Reading, prepare
from shardwise.train.data.evaluation_sets import Evaluated, open_sets
from shardwise.train.data.opening import Watch
from shardwise.train.peers import Peers
from shardwise.train.phases import Phases
from shardwise.train.resume import Show


def prepared(training: Training, peers: Peers, phases: Phases, show: Show) -> Dataset:
    """Prepare what the run trains on."""
    return prepare(
        training.data,
        Reading.of(training),
        cache_root=cache_directory(),
        watch=Watch(hosts=peers, report=show, say=phases.say, beat=phases.beat),
    )


def evaluated_on(training: Training, data: Dataset, seq_len: int, show: Show, phases: Phases) -> tuple[Evaluated, ...]:
    """Prepare what the evaluations of a run need."""
    evaluation = training.evaluation
    if evaluation.every_steps is None:
        return ()
    if evaluation.every_steps > training.steps:
        show(
            f"nothing will be evaluated: evaluation.everySteps is {evaluation.every_steps}, and steps {training.steps}"
        )
    judged, most = training.learns_preferences, evaluation.batches
    held_out = []
    if data.held_out:
        completed = training.reinforcement is not None
        held_out = [
            Evaluated(name=HELD_OUT, sequences=data.held_out, batches=most, is_judged=judged, has_prompts=completed)
        ]
    sets = open_sets(
        evaluation.sets,
        training.data,
        seq_len=seq_len,
        cache_root=cache_directory(),
        watch=Watch(report=show, beat=phases.beat),
        most=evaluation.batches,
        packs=training.model.position == "rotary",
        completion_tokens=training.reinforcement.max_tokens if training.reinforcement else 0,
    )
    return (*held_out, *sets)


def same_data(data: Dataset, evaluated: Sequence[Evaluated], peers: Peers) -> None:
    """Refuse to start if the hosts, each of which reads the data by itself, found different data."""
    sets = [one.identity for one in evaluated if one.identity is not None]
    content = f"{data.fingerprint} {json.dumps(sets, sort_keys=True)}".encode()
    found = peers.exchange("data", hashlib.sha256(content).hexdigest() if sets else data.fingerprint)
    others = [rank for rank, fingerprint in enumerate(found) if fingerprint != found[0]]
    if others:
        what = "data.train or evaluation.sets" if sets else "data.train"
        raise DataError(
            f"{what}: the hosts see different data: the fingerprint is {found[0]} on rank 0 and {found[others[0]]} "
            f"on rank {others[0]}; expected the same files on every host"
        )
