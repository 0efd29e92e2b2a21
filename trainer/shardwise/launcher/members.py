"""Which hosts are there, as the leader hears it: by their polls, and by their hands' answers.

Called by the leader. Pure: it is given the time. A host that is silent may only be slow, so there are two bounds: the
short one counts where something has failed already, and needs an explanation. Of many hosts each polls more rarely, so
that the leader answers as many polls a second as it can beside its work, and may be silent for longer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MISSED_SECONDS = 2.0
LOST_SECONDS = 10.0
_POLL_SECONDS = 0.3
_MOST_POLLS_PER_SECOND = 400.0
_MISSED_POLLS = 3.0


@dataclass(kw_only=True)
class Member:
    """One host's agent.

    Its id is not its process's number, which in a pod is always 1; `attempt` counts the agents before it, where that is
    known. `came_at`, `polled_at` (its own last word) and `heard_at` (that, or a hand's) are in the leader's monotonic
    seconds. `address` is its host's ip; `leaving` says that its host is about to go away; `stuck` why it can start no
    trainer; `epoch` is the one that its Ray node belongs to.
    """

    agent_id: str
    attempt: int = 0
    came_at: float
    polled_at: float
    heard_at: float
    address: str = ""
    leaving: bool = False
    stuck: str = ""
    epoch: int | None = None


class Members:
    """All hosts but the leader's own, which is there whenever anybody asks."""

    def __init__(self, num_hosts: int, own_id: str) -> None:
        """Nobody has been heard but oneself."""
        self._num_hosts = num_hosts
        self._own = Member(agent_id=own_id, came_at=0.0, polled_at=0.0, heard_at=0.0)
        self._members: dict[int, Member] = {}
        self._stepped_at = float("-inf")

    def superseded(self, poll: Mapping[str, Any]) -> bool:
        """Whether this is the word of an agent whose host has a later one: a lost node may go on running the first."""
        member = self._members.get(int(poll["host"]))
        return member is not None and member.agent_id != poll["agentId"] and member.attempt > int(poll["attempt"])

    def polled(self, poll: Mapping[str, Any], now: float) -> None:
        """A follower has said that it is there."""
        if self.superseded(poll):
            return
        host, agent_id = int(poll["host"]), str(poll["agentId"])
        before = self._members.get(host)
        self._members[host] = Member(
            agent_id=agent_id,
            attempt=int(poll["attempt"]),
            came_at=before.came_at if before and before.agent_id == agent_id else now,
            polled_at=now,
            heard_at=now,
            address=str(poll["address"]),
            leaving=bool(poll["leaving"]),
            stuck=str(poll["stuck"]),
            epoch=poll["epoch"],
        )

    def answered(self, host: int, agent_id: str, now: float) -> None:
        """A hand has brought a host's answer."""
        if host in self._members and self._members[host].agent_id == agent_id:
            self._members[host].heard_at = now

    def stepped(self, began_at: float) -> None:
        """A step that began then is complete, and each takes all hosts."""
        self._stepped_at = max(self._stepped_at, began_at)

    def pardon(self, seconds: float) -> None:
        """The leader itself stood still for so long and could not hear anybody."""
        for member in self._members.values():
            member.heard_at += seconds

    def leaving(self) -> list[int]:
        """The hosts that have said that they are about to go away."""
        return [host for host, member in sorted(self._members.items()) if member.leaving]

    def stuck(self) -> dict[int, Member]:
        """The hosts that can start no trainer, for the last one does not end."""
        return {host: member for host, member in sorted(self._members.items()) if member.stuck}

    def never_heard(self) -> list[int]:
        """The hosts of which nothing was ever heard."""
        return [host for host in range(1, self._num_hosts) if host not in self._members]

    def addresses(self, own: str) -> list[str]:
        """The ip of every host, in the order of the hosts; all have been heard."""
        return [own, *(self._members[host].address for host in range(1, self._num_hosts))]

    def agent_ids(self) -> dict[int, str]:
        """The agent of each host that was ever heard."""
        return {0: self._own.agent_id} | {host: member.agent_id for host, member in self._members.items()}

    def silent(self, now: float, for_seconds: float) -> list[int]:
        """The hosts that were not heard for so long, or never."""
        heard = {host for host, member in self._members.items() if now - member.heard_at < for_seconds}
        return [host for host in range(1, self._num_hosts) if host not in heard]

    def missing(self, now: float) -> list[int]:
        """The hosts that have missed their polls, and nothing else was heard of them."""
        return self.silent(now, max(MISSED_SECONDS, _MISSED_POLLS * poll_seconds(self._num_hosts)))

    def lost(self, now: float) -> list[int]:
        """The hosts that are silent for so long that they count as gone; none while all of them still make steps."""
        return [] if now - self._stepped_at < LOST_SECONDS else self.silent(now, LOST_SECONDS)

    def unheard_since(self, moment: float) -> list[int]:
        """The hosts that have not been heard after `moment`."""
        return [
            host
            for host in range(1, self._num_hosts)
            if host not in self._members or self._members[host].heard_at <= moment
        ]

    def untold_since(self, moment: float, now: float) -> list[int]:
        """The hosts that live, and have had no answer of the leader after `moment`."""
        living = {host: member for host, member in self._members.items() if now - member.heard_at < LOST_SECONDS}
        return [host for host, member in sorted(living.items()) if member.polled_at <= moment]

    def replaced(self, agent_ids: Mapping[int, str]) -> list[int]:
        """The hosts whose agent is another one than it was."""
        known = self.agent_ids()
        return [host for host, agent in sorted(agent_ids.items()) if known.get(host, agent) != agent]


def poll_seconds(num_hosts: int) -> float:
    """How long a follower waits from one poll to the next."""
    return max(_POLL_SECONDS, num_hosts / _MOST_POLLS_PER_SECOND)


def named(hosts: Sequence[int]) -> str:
    """Hosts in words."""
    return ", ".join(f"host {host}" for host in hosts)
