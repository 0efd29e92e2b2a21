"""The saves of one run through the steps: when the state was saved, and the last save, which has to succeed."""

import time
from functools import partial

from shardwise.protocol.contract import Phase
from shardwise.train.bad_steps import Past
from shardwise.train.checkpoint import CheckpointWriter, History, SaveTicket
from shardwise.train.digest import combine, to_hex
from shardwise.train.local_checkpoints import LocalWriter
from shardwise.train.peers import Peers
from shardwise.train.phases import Phases
from shardwise.train.start import Start
from shardwise.train.state import State, flat, without_base

_LAST_SAVE_WAITS_SECONDS = (2.0, 8.0, 32.0)


class Saves:
    """The checkpoints that the loop asks for.

    Args:
        start: what the run started from; its identity goes into every checkpoint.
        writer: writes them in the background.
        phases: where time is counted and progress recorded.
        peers: the processes that save together.
        local: writes local checkpoints, if the job makes any.

    """

    def __init__(
        self, start: Start, writer: CheckpointWriter, phases: Phases, peers: Peers, local: LocalWriter | None
    ) -> None:
        self._start, self._writer, self._phases, self._peers = start, writer, phases, peers
        self._local = local
        self._ticket: SaveTicket | None = None
        self._saved_step = start.saved_step

    def save(self, step: int, state: State, past: Past) -> None:
        """Copy the state to the host, and let the writer do the rest while training goes on.

        `past` is of the steps up to it, for whoever continues from this checkpoint.
        """
        if self._saved_step == step:
            return
        with self._phases.entered(Phase.SAVE):
            self._ticket = self._writer.save(
                step,
                flat(without_base(state)),
                digester=self._start.digester,
                identity=self._start.identity,
                history=self._history(past),
                overwrite=self._start.forked or step in self._start.refused,
                beat=self._phases.beat,
            )
        self._saved_step = step

    def save_locally(self, step: int, state: State, past: Past) -> None:
        """Copy the state to the host, and let the writer of local checkpoints do the rest; `past` is as above."""
        assert self._local is not None, "it is due only in a job that asks for it"
        with self._phases.entered(Phase.SAVE):
            self._local.save(
                step,
                flat(without_base(state)),
                digester=self._start.digester,
                identity=self._start.identity,
                history=self._history(past),
                beat=self._phases.beat,
            )

    def _history(self, past: Past) -> History:
        return History(left_out=self._start.left_out, losses=past.losses, skipped=past.skipped)

    def save_last(self, step: int, state: State, past: Past) -> None:
        """Save the last state, and wait until it is committed.

        An earlier save that fails is made up for by the next one. After the last there is none, so it is repeated.
        """
        waits_seconds = [*_LAST_SAVE_WAITS_SECONDS]
        while True:
            self.save(step, state, past)
            with self._phases.entered(Phase.SAVE):
                self._writer.wait(self._phases.beat)
                error = self._ticket.error if self._ticket else None
                if error is None:
                    break
                if not waits_seconds:
                    raise error
                self._saved_step = None
                time.sleep(waits_seconds.pop(0))
        if self._local:
            with self._phases.entered(Phase.SAVE):
                self._local.wait(self._phases.beat)  # what it reports belongs before the end

    def digest(self, state: State) -> str:
        """Return the digest of the last state: that of its checkpoint or, if nothing was saved, a new one."""
        if self._ticket is not None and self._ticket.digest is not None:
            return self._ticket.digest
        digests = self._start.digester(flat(without_base(state)))
        return combine(to_hex(digests, partial(self._peers.agree, "last")))
