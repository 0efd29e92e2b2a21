"""The checkpoints of a program's run: any tree of arrays, written and read as the trainer's are."""

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, TypeVar

import jax

from shardwise.job.spec import Keep
from shardwise.program.leaves import Leaves
from shardwise.program.record import Record
from shardwise.protocol.contract import Phase, checkpoint_root
from shardwise.protocol.errors import CheckpointError
from shardwise.train.checkpoint import CheckpointWriter, SaveTicket, restore, set_aside
from shardwise.train.digest import Digester, combine
from shardwise.train.fence import fenced
from shardwise.train.peers import Peers
from shardwise.train.phases import Phases
from shardwise.train.run_directory import RunDirectory

Tree = TypeVar("Tree")
Abstract = Mapping[str, jax.ShapeDtypeStruct]
_TOGETHER = (
    "arrays on a mesh of all devices: jax.device_put(tree, jax.NamedSharding(run.mesh(data=None), jax.P())), "
    "or eqx.filter_shard of a tree with functions"
)


class Checkpoints:
    """The checkpoints of one run, in the folder `checkpoints` of its directory, or in a folder of a bucket, `root`.

    `step` is that of the last one that was saved or restored, None before; `saved_at` is when the restored one was
    saved, in seconds since the epoch.
    """

    def __init__(
        self,
        name: str,
        files: RunDirectory,
        peers: Peers,
        phases: Phases,
        record: Record,
        *,
        keep: int,
        root: str | None = None,
    ) -> None:
        """Touch nothing yet; `keep` is how many stay."""
        self._name, self._files, self._peers, self._phases, self._record = name, files, peers, phases, record
        self._root = checkpoint_root(root, files.path)
        self._keep = Keep(last=keep)
        self._stack = ExitStack()
        self._writer: CheckpointWriter | None = None
        self._ticket: SaveTicket | None = None
        self._digesters: dict[tuple[Any, ...], Digester] = {}
        self._refused: frozenset[int] = frozenset()
        self._replaces = False
        self._goes_back_to: int | None = None
        self.step: int | None = None
        self.saved_at: float | None = None

    @property
    def digest(self) -> str | None:
        """The digest of what was saved last, once it is committed."""
        return self._ticket.digest if self._ticket else None

    def save(self, tree: Any, step: int) -> None:
        """Copy the arrays, and have them written in the background; a step that is saved already stays as it is."""
        if step == self.step:
            return
        leaves = Leaves.of(tree)
        if differing := self._peers.agree("leaves", json.dumps(leaves.checksums()), _differing):
            raise CheckpointError(
                f"checkpoint: {differing} of step {step} is not the same on all processes, and each has its own; "
                f"expected {_TOGETHER}, or else equal values"
            )
        if self._writer is None and leaves.are_apart():
            # Equal copies are refused nowhere: a program may average its gradients in a way that is not JAX's.
            tell(
                f"checkpoint: each of the {self._peers.count} processes has all of step {step} for itself, and so does "
                f"the same work as the others, unless the script itself joins them; expected {_TOGETHER}"
            )
        arrays = leaves.arrays()
        abstract = {path: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=a.sharding) for path, a in arrays.items()}
        digester = self._digester(abstract)
        with self._phases.entered(Phase.SAVE):
            self._writer = self._writer or self._opened()
            self._leave_what_came_after()
            self._ticket = self._writer.save(
                step,
                arrays,
                digester=digester,
                identity={},
                overwrite=self._replaces or step in self._refused,
                beat=self._phases.beat,
            )
        self.step = step

    def restore(self, like: Tree, step: int | None) -> tuple[Tree, int]:
        """Return the tree with the values of a checkpoint, and its step; as it is, with step 0, before the first."""
        self.wait()  # what was saved last may be what is asked for
        leaves = Leaves.of(like)
        abstract = leaves.abstract()
        digester = self._digester(abstract)
        with self._phases.entered(Phase.RESTORE):
            found = restore(
                self._root,
                abstract,
                step=step,
                digester=digester,
                report=_tell_refused,
                agree=partial(self._peers.agree, "restore"),
                beat=self._phases.beat,
            )
        if found is None:
            return like, 0
        # What was saved after a step that was asked for by its number is another way on from there.
        self._replaces, self._goes_back_to = step is not None, step
        self._refused = frozenset(refused for refused, _ in found.refused)
        self.step, self.saved_at = found.step, found.manifest.created.timestamp()
        digests = {path: array.digest for path, array in found.manifest.arrays.items()}
        self._record.restored(found.step, combine(digests))
        tree: Tree = leaves.with_values(found.arrays)
        return tree, found.step

    def wait(self) -> None:
        """Wait until what was saved is committed.

        Raises:
            ShardwiseError: it is not.

        """
        if self._writer:
            with self._phases.entered(Phase.SAVE):
                self._writer.wait(self._phases.beat)
        if self._ticket and self._ticket.error:
            raise self._ticket.error

    def close(self) -> None:
        """Wait like `wait`, and give the folder back."""
        with self._stack:
            self.wait()

    def _leave_what_came_after(self) -> None:
        """With the first save after going back to a step, set aside the checkpoints that follow it; keep its own.

        Else these would be the newest: the next start would go on from them, and retention would keep no others.
        """
        if self._goes_back_to is None:
            return
        assert self._writer is not None
        self._writer.keep_origin(self._goes_back_to)
        if self._peers.writes and (steps := set_aside(self._root, self._goes_back_to)):
            tell(f"checkpoint: the run goes on from step {self._goes_back_to}; set aside what it had after: {steps}")
        self._goes_back_to = None

    def _opened(self) -> CheckpointWriter:
        fence = self._files.hold_attempt
        if self._peers.writes:
            held = fenced(self._root, self._files, self._name, show=tell, beat=self._phases.beat)
            fence = self._stack.enter_context(held)
        writer = CheckpointWriter(
            self._root,
            keep=self._keep,
            run=self._name,
            attempt=self._files.attempt,
            fence=fence,
            processes=self._peers,
            listener=self._record,
            restored=self.step is not None,
        )
        self._stack.callback(writer.close)
        return writer

    def _digester(self, abstract: Abstract) -> Digester:
        signature = tuple((path, a.shape, a.dtype, a.sharding) for path, a in sorted(abstract.items()))
        if signature not in self._digesters:
            with self._phases.entered(Phase.COMPILE):
                self._digesters[signature] = Digester(abstract)
        return self._digesters[signature]


def tell(text: str) -> None:
    """Write a line to the program's log."""
    print(f"shardwise: {text}", flush=True)  # noqa: T201  its output is the log


def _differing(texts: Sequence[str]) -> str:
    """Return the first leaf whose checksum is not the same in all of the texts; "" if there is none."""
    all_of = [json.loads(text) for text in texts]
    names = {name: None for checksums in all_of for name in checksums}
    return next((name for name in names if len({checksums.get(name) for checksums in all_of}) > 1), "")


def _tell_refused(step: int, reason: str) -> None:
    tell(f"checkpoint of step {step} refused: {reason}")
