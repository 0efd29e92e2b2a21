"""Which hosts are alive, as the leader knows from their polls and from their agents' answers. Pure: time is passed in.

A silent host may only be slow, so there are two bounds. The long one decides that a host is lost; the short one that
nothing should be started without it. The more hosts there are, the more rarely each one polls, so that the leader can
answer all of them beside its work, and the longer it may be silent.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shardwise.launcher.agent.client import poll_seconds
from shardwise.protocol.poll import Poll
from shardwise.protocol.report import Exit
from shardwise.protocol.run_status import StuckHost

MISSED_SECONDS = 2.0
LOST_SECONDS = 10.0
_MOST_NAMED = 10
_SIGN_OF_LIFE_SECONDS = 2.5
_MISSED_POLLS, _LOST_POLLS = 3.0, 4.0


@dataclass(kw_only=True)
class Member:
    """One host's agent: its last poll, when that came, and when its last poll or answer did (monotonic seconds)."""

    poll: Poll
    polled_at: float
    seen_at: float


class Members:
    """All hosts but the leader's own, which needs no watching: without it there is no leader."""

    def __init__(self, num_hosts: int, own_id: str) -> None:
        """Start without a poll from any host."""
        self._num_hosts = num_hosts
        self._own_id = own_id
        self._members: dict[int, Member] = {}
        self._stepped_at = float("-inf")
        self._lost_seconds = max(LOST_SECONDS, _LOST_POLLS * poll_seconds(num_hosts))

    @property
    def sign_of_life_seconds(self) -> float:
        """Return within how many seconds every host that lives is heard: a poll may just have gone, so within two."""
        return max(_SIGN_OF_LIFE_SECONDS, 2 * poll_seconds(self._num_hosts))

    def superseded(self, poll: Poll) -> bool:
        """Return whether the poll comes from an agent whose host already has a newer one."""
        # A node that the cluster has lost from sight may still run the old pod beside its replacement.
        last = self._members[poll.host].poll if poll.host in self._members else poll
        return last.agent_id != poll.agent_id and last.pod_attempt > poll.pod_attempt

    def polled(self, poll: Poll, now: float) -> None:
        """Take in a follower's poll."""
        if self.superseded(poll):
            return
        self._members[poll.host] = Member(poll=poll, polled_at=now, seen_at=now)

    def answered(self, host: int, agent_id: str, now: float) -> None:
        """Take in that a host's agent has answered a request."""
        if host in self._members and self._members[host].poll.agent_id == agent_id:
            self._members[host].seen_at = now

    def stepped(self, began_at: float) -> None:
        """Take in that a step which began at that time is complete: all hosts were alive, since each step needs all."""
        self._stepped_at = max(self._stepped_at, began_at)

    def discount_pause(self, seconds: float, now: float) -> None:
        """Do not count this many seconds of silence against any host: the leader itself could not listen."""
        for member in self._members.values():
            # A host may have been heard since the pause. Nobody is heard in advance: its end would be noticed late.
            member.seen_at = min(now, member.seen_at + seconds)

    def leaving(self) -> list[int]:
        """Return the hosts that are about to go away."""
        return [host for host, member in sorted(self._members.items()) if member.poll.leaving]

    def stuck(self) -> list[StuckHost]:
        """Return the hosts that can start no trainer, because their last one does not end."""
        polls = [member.poll for _, member in sorted(self._members.items())]
        return [StuckHost(host=poll.host, address=poll.address, message=poll.stuck) for poll in polls if poll.stuck]

    def ended(self) -> dict[int, Exit]:
        """Return how trainers ended, for each host whose last poll reports it."""
        return {host: member.poll.ended for host, member in self._members.items() if member.poll.ended}

    def never_polled(self) -> list[int]:
        """Return the hosts from which no poll ever came."""
        return [host for host in range(1, self._num_hosts) if host not in self._members]

    def addresses(self, own: str) -> list[str]:
        """Return the ip of every host in order; only to be called once all hosts have polled."""
        return [own, *(self._members[host].poll.address for host in range(1, self._num_hosts))]

    def agent_ids(self) -> dict[int, str]:
        """Return the id of the agent on each host that has ever polled."""
        return {0: self._own_id} | {host: member.poll.agent_id for host, member in self._members.items()}

    def silent(self, now: float, for_seconds: float) -> list[int]:
        """Return the hosts from which nothing came for so many seconds, or ever."""
        return self.silent_since(now - for_seconds)

    def missing(self, now: float) -> list[int]:
        """Return the hosts that have missed their polls and have not answered either."""
        return self.silent(now, max(MISSED_SECONDS, _MISSED_POLLS * poll_seconds(self._num_hosts)))

    def lost(self, now: float) -> list[int]:
        """Return the hosts that have been silent for so long that they count as gone."""
        # While steps complete no host is gone, whatever has become of its polls: a lost network must end no run.
        return [] if now - self._stepped_at < self._lost_seconds else self.silent(now, self._lost_seconds)

    def silent_since(self, moment: float) -> list[int]:
        """Return the hosts from which nothing came after `moment`."""
        heard = {host for host, member in self._members.items() if member.seen_at > moment}
        return [host for host in range(1, self._num_hosts) if host not in heard]

    def not_polled_since(self, moment: float, now: float) -> list[int]:
        """Return the live hosts that have not polled, and so got no answer, since `moment`."""
        living = {host: member for host, member in self._members.items() if now - member.seen_at < self._lost_seconds}
        return [host for host, member in sorted(living.items()) if member.polled_at <= moment]

    def replaced(self, agent_ids: Mapping[int, str]) -> list[int]:
        """Return the hosts whose agent is no longer the one given."""
        known = self.agent_ids()
        return [host for host, agent in sorted(agent_ids.items()) if known.get(host, agent) != agent]


def host_names(hosts: Sequence[int]) -> str:
    """Return the hosts' names as part of a message; of many the first ones, and how many others there are."""
    names = ", ".join(f"host {host}" for host in hosts[:_MOST_NAMED])
    others = len(hosts) - _MOST_NAMED
    return f"{names} and {others} other{'s' if others > 1 else ''}" if others > 0 else names
