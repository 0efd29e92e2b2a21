"""Every kind of kill in every phase, on hosts and on slices: `make test-long`, of which this takes 14 minutes.

The other tests of this folder take a part of it, chosen so that each kind, each phase and each rank is there. Left out
here too are the phases `start` and `data`, which are over sooner than a signal could be sent.
"""

import signal
from collections.abc import Callable
from functools import partial
from itertools import cycle

import pytest
from tests.cli.shell import EVALUATED, Shell
from tests.hosts.disturbing import Kill, agent, disturb, host, in_phase, trainer

from shardwise.protocol.contract import Phase

pytestmark = pytest.mark.long

PHASES = (Phase.JOIN, Phase.INIT, Phase.COMPILE, Phase.STEP, Phase.RESTORE, Phase.SAVE, Phase.EVALUATE)
KINDS: dict[str, tuple[Callable[..., Kill], str]] = {
    "trainer": (trainer, "failure"),
    "agent": (agent, "hostLost"),
    "host": (host, "hostLost"),
    "still": (partial(trainer, number=signal.SIGSTOP), "hang"),
}
PLACES = {"two hosts": ("2x2", 1, 2), "four hosts": ("4x1", 1, 4), "two slices": ("1x2", 2, 2)}


@pytest.fixture(scope="module")
def ended() -> dict[str, str]:
    """Return the digests that undisturbed runs have ended with, by place."""
    return {}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("leader_first", [True, False], ids=["leader first", "leader second"])
def test_killed_in_every_phase(
    shell: Shell, ended: dict[str, str], place: str, kind: str, *, leader_first: bool
) -> None:
    """In each phase once, by turns of the first rank and the last: every kill costs one restart, for its cause."""
    topology, slices, hosts = PLACES[place]
    where = (f"hardware.topology={topology}", f"hardware.slices={slices}")
    if place not in ended:
        ended[place] = shell.finish(f"{topology}-undisturbed", *where)["digest"]
    signalled, cause = KINDS[kind]
    ranks = cycle((0, hosts - 1) if leader_first else (hosts - 1, 0))
    run = shell.begin(
        f"{topology}-{kind}-{leader_first}",
        *(*where, EVALUATED, "recovery.hangAfter=10s", f"recovery.restarts.{cause}={len(PHASES)}"),
    )

    disturb(run, *(signalled(in_phase(phase, next(ranks), 5 if phase is Phase.STEP else 0)) for phase in PHASES))
    summary = run.finish()

    assert summary["digest"] == ended[place]
    assert (summary["hosts"], summary["restarts"]) == (hosts, {cause: len(PHASES)})
