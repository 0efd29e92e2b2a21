"""The batches of a run that learns from rewards: what the model has made of prompts, and what that is worth.

With the same means over prompts that are not trained on.

Prompts follow from the number of a group of steps, mostly one, and so do the random numbers of each completion. So a
step that is taken again, by a run that goes on, is taken on the same completions: what is saved is the state between
two groups.
"""

import hashlib
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from shardwise.job.accelerators import usable_bytes
from shardwise.job.spec import Training, TrainingJob
from shardwise.protocol.contract import Phase
from shardwise.protocol.errors import DataError, DeviceError, RewardError, ShardwiseError
from shardwise.train.data.dataset import Dataset
from shardwise.train.data.evaluation_sets import Evaluated
from shardwise.train.data.prompts import Prompt
from shardwise.train.data.sequences import HeldOutSet
from shardwise.train.decoder import bytes_limit
from shardwise.train.executables import Executables
from shardwise.train.microbatches import Batch
from shardwise.train.peers import Peers
from shardwise.train.phases import Phases, Told
from shardwise.train.reinforcement import advantages_of
from shardwise.train.rewards import COMPLETION, Rewards, rewards_of
from shardwise.train.sampler import Completion, Sampler
from shardwise.train.state import Program, without_copies
from shardwise.train.step import lower_scores
from shardwise.train.work import Work, told_of

_OF_EVALUATIONS = 1 << 31
"""The number of the first batch of an evaluation, by which its random numbers are those of no step."""
_ERRORS: Mapping[str, type[ShardwiseError]] = {each.__name__: each for each in (DataError, RewardError)}


class Part(NamedTuple):
    """A step's batch, and what metrics have of its completions."""

    batch: Batch
    figures: dict[str, float]


class Completions:
    """The batches of a run that learns from rewards.

    Args:
        training: the job's.
        data: its prompts; None if there are to be no batches.
        sampler: makes completions.
        rewards: say what they are worth.
        peers: the processes of the run; each asks for the rewards of some of the completions.
        phases: where time is counted and progress recorded.
        scores: (params, batch) -> the cross entropy of each token, if more than one step learns from completions.

    """

    def __init__(
        self,
        training: Training,
        data: Dataset | None,
        sampler: Sampler,
        rewards: Rewards,
        peers: Peers,
        phases: Told,
        scores: Callable[..., jax.Array] | None = None,
    ) -> None:
        assert training.reinforcement is not None
        self._training, self._learning, self._data = training, training.reinforcement, data
        self._sampler, self._rewards, self._peers, self._phases = sampler, rewards, peers, phases
        self._scores = scores
        self._asked: list[int] = []

    def batches(self, number: int, params: Mapping[str, jax.Array]) -> list[Part]:
        """Return what the steps of a group learn from, each its own part; these are the weights that make it.

        Raises:
            DataError, RewardError: a host has not found out what its completions are worth.
            DeviceError: the hosts have made different completions.
            NonFiniteError: the parameters give logits that are not numbers.

        """
        assert self._data is not None, "given"
        samples, updates = self._learning.samples, self._learning.updates
        count = self._training.batch.sequences // samples * updates
        groups = self._data.train.prompts(np.arange(number * count, (number + 1) * count, dtype=np.int64))
        with self._phases.entered(Phase.SAMPLE):
            made = self._complete(params, [prompt for prompt in groups for _ in range(samples)], number)
        with self._phases.entered(Phase.REWARD):
            rewards = self._worth(made).reshape(count, samples)
        parts, size = np.split(rewards, updates), self._training.batch.sequences
        return [self._made(params, made[i * size : (i + 1) * size], part) for i, part in enumerate(parts)]

    def _made(self, params: Mapping[str, jax.Array], made: Sequence[Completion], rewards: NDArray[np.float64]) -> Part:
        """Return what one step learns from; rewards are [prompt, sample]."""
        figures = _figures(rewards, made) | {"sameRewards": float((np.ptp(rewards, axis=1) == 0).mean())}
        batch = self._as_batch(made, advantages_of(rewards, self._learning).reshape(-1))
        if self._scores is None:
            return Part(batch, figures)
        with told_of(Work.SCORES):
            losses = np.asarray(self._scores(without_copies(params), batch._replace(advantages=None)))
        return Part(batch._replace(before=self._placed(losses)), figures)

    def means(self, params: Mapping[str, jax.Array], one: Evaluated) -> dict[str, float]:
        """Return the means over a set of prompts, each of which is completed once, always by the same random numbers.

        Raises:
            DataError, RewardError, DeviceError, NonFiniteError: as of a batch.

        """
        assert isinstance(one.sequences, HeldOutSet), "it is of prompts"
        size = self._training.batch.sequences
        last = min(one.num_batches(size) * size, one.sequences.num_sequences)
        made: list[Completion] = []
        rewards: list[NDArray[np.float64]] = []
        for first in range(0, last, size):
            prompts = one.sequences.prompts(np.arange(first, min(first + size, last), dtype=np.int64))
            some = self._complete(params, prompts, _OF_EVALUATIONS + first // size)
            rewards.append(self._worth(some))
            made += some
        return _figures(np.concatenate(rewards), made) | {"prompts": len(made)}

    def record(
        self, record: Mapping[str, float], values: Mapping[str, float], figures: Mapping[str, float]
    ) -> dict[str, float]:
        """Return the numbers of a step with those of its completions, of which an accuracy is none."""
        tokens = figures["completionTokens"] * self._training.batch.sequences
        more = {**figures, "entropy": values["accuracy"] * values["weight"] / tokens}
        if self._training.has_reference:
            more["divergence"] = values["z_loss"] * values["weight"] / tokens
        if "clipped" in values:
            more["clipped"] = values["clipped"] / tokens
        return {name: x for name, x in record.items() if name != "accuracy"} | more

    def close(self) -> None:
        """End the program of rewards."""
        self._rewards.close()

    @told_of(Work.COMPLETIONS)
    def _complete(self, params: Mapping[str, jax.Array], prompts: Sequence[Prompt], number: int) -> list[Completion]:
        """Return a completion of each; this host asks about those of its part as they end, while others are made."""
        ended = itertools.count(1)

        def tell(row: int, made: Completion) -> None:
            self._phases.say(f"{next(ended):,} of {len(prompts):,} completions")
            if row % self._peers.count == self._peers.rank:
                self._rewards.ask({**made.prompt.line, COMPLETION: made.text})
                self._asked.append(row)

        return self._sampler.complete(params, prompts, self._training.seed << 32 | number, tell, self._phases.beat)

    def _worth(self, made: Sequence[Completion]) -> NDArray[np.float64]:
        """Return the rewards of all: each host waits for those it has asked about, and tells the others."""
        told: dict[str, Any] = {"made": _digest(made)}
        asked, self._asked = self._asked, []
        try:
            found_of = dict(zip(asked, self._rewards.answers(self._phases.beat), strict=True))
            told["rewards"] = [found_of[row] for row in sorted(found_of)]
        except (DataError, RewardError) as error:
            told |= {"kind": type(error).__name__, "error": str(error)}
        # Also of a host that has failed: the others must not wait for it, and all end by the same error.
        found = [json.loads(text) for text in self._peers.exchange("rewards", json.dumps(told))]
        for rank, each in enumerate(found):
            if "error" in each:
                who = f"host {rank}: " if self._peers.count > 1 else ""
                raise _ERRORS[each["kind"]](who + each["error"])
            if each["made"] != found[0]["made"]:
                raise DeviceError(
                    f"the completions on rank {rank} differ from those on rank 0, of the same weights and prompts: a "
                    "device of one of them computes wrong, or the hosts run different versions"
                )
        rewards = np.empty(len(made))
        for rank, each in enumerate(found):
            rewards[rank :: self._peers.count] = each["rewards"]
        return rewards

    def _as_batch(self, made: Sequence[Completion], advantages: NDArray[np.float32]) -> Batch:
        """Return a row for each: prompt, completion, and the room that is left."""
        seq_len = self._sampler.program.config.seq_len
        shape = (len(made), seq_len)
        tokens, targets, segments = (np.zeros(shape, np.int32) for _ in range(3))
        weights = np.zeros(shape, np.float32)
        for row, each in enumerate(made):
            whole, first = [*each.prompt.tokens, *each.tokens], len(each.prompt.tokens)
            tokens[row, : len(whole)], targets[row, : len(whole) - 1] = whole, whole[1:]
            weights[row, first - 1 : len(whole) - 1] = 1
            segments[row, len(whole) :] = 1
        return Batch(*map(self._placed, (tokens, targets, weights, segments, weights * advantages[:, None])))

    def _placed(self, x: NDArray[Any]) -> jax.Array:
        """Put [batch, position] on the devices; only the rows of this host's devices go there."""
        return jax.make_array_from_callback(x.shape, self._sampler.program.layout.batch, x.__getitem__)


def completing(
    job: TrainingJob,
    program: Program,
    data: Dataset,
    evaluated: Sequence[Evaluated],
    kept: Executables,
    pool: ThreadPoolExecutor,
) -> Callable[[Peers, Phases], Completions]:
    """Begin to compile what makes completions; return a function that waits for it, and starts what rewards them."""
    sets = [one.sequences.longest for one in evaluated if one.has_prompts and isinstance(one.sequences, HeldOutSet)]
    # What the class says first: it says the same at each start, and to the plan.
    longest, limit = max([data.train.longest, *sets]), usable_bytes(job) or bytes_limit(program)
    sampler = Sampler.compiling(program, data, longest, limit=limit, kept=kept, pool=pool)
    scores = pool.submit(kept.get, "scores", partial(lower_scores, program)) if program.training.clips else None

    def made(peers: Peers, phases: Phases) -> Completions:
        training, ready = program.training, sampler()
        assert training.reinforcement is not None
        rewards = rewards_of(training.reinforcement.reward)
        return Completions(training, data, ready, rewards, peers, phases, scores.result() if scores else None)

    return made


def _figures(rewards: NDArray[np.float64], made: Sequence[Completion]) -> dict[str, float]:
    return {
        "reward": float(rewards.mean()),
        "completionTokens": float(np.mean([len(each.tokens) for each in made])),
        "cutCompletions": float(np.mean([each.is_cut for each in made])),
    }


def _digest(made: Sequence[Completion]) -> str:
    digest = hashlib.sha256()
    for each in made:
        digest.update(np.array([len(each.tokens), *each.tokens], "<i4").tobytes())
    return digest.hexdigest()
