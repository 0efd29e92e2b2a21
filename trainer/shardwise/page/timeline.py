"""launcher.jsonl as a page needs it: the attempts with their times and causes, slow hosts, and what else happened."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from shardwise.page.document import AttemptTimes, HostTimes, Notice, SlowHost
from shardwise.protocol.run_status import RunStatus
from shardwise.protocol.text import writable

MOST_ATTEMPTS = 100
MOST_HOSTS = 32
_MOST_HOST_ROWS = 1000  # over all attempts
_LEAST_HOSTS = 4
_TEXTS = ("message", "reason", "cause", "exit", "file", "host", "rank", "steps", "batch", "inARow")
_SHOWN_ELSEWHERE = ("attempt", "running", "hosts", "ended", "done", "restarting", "session", "slow")


class Timeline:
    """What the events add up to. Of a large run it is bounded by `shown`."""

    def __init__(self, events: Iterable[Mapping[str, Any]]) -> None:
        """Take the events, oldest first."""
        self.attempts: list[AttemptTimes] = []
        self._slow: dict[int, SlowHost] = {}
        self.notices: list[Notice] = []
        for event in events:
            if isinstance(event.get("time"), int | float):
                self._take(event)

    @property
    def slow(self) -> list[SlowHost]:
        """The newest word on each slow host, the one that was named last at the end."""
        return list(self._slow.values())

    def live(self, status: RunStatus, now: float) -> None:
        """Take in what the leader of a live run says of the attempt under way."""
        if self.attempts and self.attempts[-1].ended is None and self.attempts[-1].number == status.attempt:
            hosts = [HostTimes.model_validate(host.model_dump(mode="json")) for host in status.hosts]
            self._change(last=max(now, self.attempts[-1].last), hosts=hosts)
        if status.slowest_host is not None and status.slowest_host not in self._slow:
            self._slow[status.slowest_host] = SlowHost(host=status.slowest_host)

    def shown(self) -> list[AttemptTimes]:
        """Return the newest attempts, with the hosts that events have named, the newest first, and then the first."""
        attempts = self.attempts[-MOST_ATTEMPTS:]
        most = min(MOST_HOSTS, max(_LEAST_HOSTS, _MOST_HOST_ROWS // max(1, len(attempts))))
        named = [slow.host for slow in reversed(self.slow)]
        named += [attempt.rank for attempt in reversed(attempts) if attempt.rank is not None]
        every = sorted({host.host for attempt in attempts for host in attempt.hosts})
        chosen = list(dict.fromkeys([*named[: most // 2], *every]))[:most]
        return [_only(attempt, chosen) for attempt in attempts]

    def _take(self, event: Mapping[str, Any]) -> None:
        name, at = event.get("event"), event["time"]
        if name == "attempt":
            self.attempts.append(AttemptTimes(number=event["attempt"], began=at, last=at))
            if len(self.attempts) > MOST_ATTEMPTS:  # no longer shown: of a thousand hosts each is some megabytes
                old = -MOST_ATTEMPTS - 1
                self.attempts[old] = self.attempts[old].model_copy(update={"hosts": []})
        elif name == "slow":
            host = event["host"]
            self._slow.pop(host, None)  # a host may be slow each minute for months
            self._slow[host] = SlowHost(host=host, time=at, message=event.get("message", ""))
        elif name not in _SHOWN_ELSEWHERE:
            self.notices.append(notice(event))
        if self.attempts and self.attempts[-1].ended is None:
            self._note(str(name), at, event)
        elif self.attempts and name in ("ended", "done"):
            self._note_end(at, event)

    def _note(self, name: str, at: float, event: Mapping[str, Any]) -> None:
        """Note what an event says of the attempt under way."""
        at = max(at, self.attempts[-1].last)  # the clock may have been set back
        if name == "running":
            self._change(running=at, from_step=event.get("fromStep"))
        elif name == "hosts":
            hosts = [HostTimes.model_validate(host) for host in event.get("hosts", [])]
            self._change(ended=at, hosts=hosts)
        elif name in ("ended", "done"):
            self._note_end(at, event)
        self._change(last=at)

    def _note_end(self, at: float, event: Mapping[str, Any]) -> None:
        """Note how the last attempt ended. `done` repeats a bad end, and alone tells of a good one."""
        attempt = self.attempts[-1]
        self._change(
            ended=attempt.ended or at,
            cause=attempt.cause or event.get("cause"),
            rank=event.get("rank") if attempt.rank is None else attempt.rank,
            exit=attempt.exit or event.get("exit"),
            message=attempt.message or event.get("message", ""),
        )

    def _change(self, **changes: Any) -> None:
        fit = {name: writable(value) if isinstance(value, str) else value for name, value in changes.items()}
        self.attempts[-1] = self.attempts[-1].model_copy(update=fit)  # which checks nothing


def notice(event: Mapping[str, Any]) -> Notice:
    """Return an event as a notice, with all that it says in words."""
    given = [key for key in _TEXTS if event.get(key) not in (None, "", [])]  # host and rank may be 0
    told = [f"{key} {event[key]}" if key not in _TEXTS[:2] else str(event[key]) for key in given]
    return Notice(event=str(event.get("event")), time=event.get("time"), step=event.get("step"), text=", ".join(told))


def _only(attempt: AttemptTimes, chosen: Collection[int]) -> AttemptTimes:
    """Return the attempt with these of its hosts."""
    hosts = [host for host in attempt.hosts if host.host in chosen]
    return attempt.model_copy(update={"hosts": hosts, "hosts_left_out": len(attempt.hosts) - len(hosts)})
