"""shardwise.page.timeline: the events of a run as attempts with their hosts."""

from tests.page.building import BEGAN, ENDED, EVENTS, host

from shardwise.page.timeline import MOST_ATTEMPTS, MOST_HOSTS, Timeline
from shardwise.protocol.run_status import RunStatus


def test_attempts_have_their_times_and_causes() -> None:
    """A bad end has its cause, rank and exit; a good one its message; both have the times of their events."""
    killed, complete = Timeline(EVENTS).attempts
    assert (killed.began, killed.running, killed.ended) == (BEGAN, BEGAN + 10, BEGAN + 30)
    assert (killed.cause, killed.rank, killed.exit) == ("failure", 1, "signal SIGKILL")
    assert [(each.host, each.own_seconds, each.phases["compile"]) for each in killed.hosts] == [
        (0, 0.001, 4.0),
        (1, 0.002, 4.0),
    ]
    assert (complete.began, complete.from_step, complete.ended) == (BEGAN + 32, 4, BEGAN + 40)
    assert (complete.cause, complete.message, complete.hosts) == (None, "complete", [])


def test_an_attempt_of_a_command_that_was_killed_has_no_end() -> None:
    """Where no end is written none is made up: the last event is the last that is known."""
    (attempt,) = Timeline(EVENTS[:5]).attempts
    assert (attempt.ended, attempt.last, attempt.cause, attempt.message) == (None, BEGAN + 15, None, "")


def test_what_else_happened_is_noticed() -> None:
    """A slow host is named with its reason, and requests are events; what attempts show is not said twice."""
    timeline = Timeline(EVENTS)
    assert [(slow.host, slow.time) for slow in timeline.slow] == [(1, BEGAN + 12)]
    assert "2.0 times" in timeline.slow[0].message
    assert [notice.event for notice in timeline.notices] == ["save"]


def test_host_and_rank_0_are_named_as_others_are() -> None:
    """An event that names a host or a rank says which one, the first too."""
    silent = {"event": "noAnswer", "op": "report", "reason": "no answer within 5 s", "time": BEGAN + 1}
    stalled = {"event": "stalled", "message": "no step for 20 s", "time": BEGAN + 2}
    timeline = Timeline(
        [{**silent, "host": 0}, {**silent, "host": 1}, {**stalled, "rank": 0}, {**stalled, "rank": None}]
    )
    assert [notice.text for notice in timeline.notices] == [
        "no answer within 5 s, host 0",
        "no answer within 5 s, host 1",
        "no step for 20 s, rank 0",
        "no step for 20 s",
    ]


def test_a_clock_that_is_set_back_makes_no_time_negative() -> None:
    """An attempt lasts no less than nothing, whatever the clock of the leader's machine has done meanwhile."""
    began = [{"event": "attempt", "attempt": 0, "time": BEGAN}, {"event": "running", "fromStep": 0, "time": BEGAN - 50}]
    (lives,) = Timeline(began).attempts
    assert (lives.running, lives.last) == (BEGAN, BEGAN)
    hosts = {"event": "hosts", "hosts": [host(0)], "time": BEGAN - 30}
    (over,) = Timeline([*began, hosts, {"event": "ended", **ENDED, "time": BEGAN - 29}]).attempts
    assert (over.ended, over.cause) == (BEGAN, "failure")


def test_of_a_large_run_what_events_name_is_shown() -> None:
    """Of a thousand hosts the first are shown, and those that events have named; of many attempts the newest."""
    hosts = {"event": "hosts", "hosts": [host(number) for number in range(1000)], "time": BEGAN + 20}
    slow = {"event": "slow", "host": 777, "message": "", "time": BEGAN + 12}
    lost = {"event": "ended", **ENDED, "rank": 555, "time": BEGAN + 21}
    (attempt,) = Timeline([*EVENTS[:3], slow, hosts, lost]).shown()
    assert [each.host for each in attempt.hosts] == [*range(MOST_HOSTS - 2), 555, 777]
    assert attempt.hosts_left_out == 1000 - MOST_HOSTS
    began = ({"event": "attempt", "attempt": number, "time": BEGAN + number} for number in range(MOST_ATTEMPTS + 7))
    shown = Timeline(began).shown()
    assert (len(shown), shown[0].number) == (MOST_ATTEMPTS, 7)


def test_hosts_of_attempts_that_are_not_shown_are_forgotten() -> None:
    """Of a run of months on a thousand hosts they would be hundreds of megabytes; its first start stays known."""
    events = [
        event | {"time": BEGAN + 10 * number}
        for number in range(MOST_ATTEMPTS + 50)
        for event in (
            {"event": "attempt", "attempt": number},
            {"event": "hosts", "hosts": [host(0), host(1)]},
            {"event": "ended", **ENDED},
        )
    ]
    timeline = Timeline(events)

    assert [len(attempt.hosts) for attempt in timeline.attempts] == [0] * 50 + [2] * MOST_ATTEMPTS
    assert timeline.attempts[0].began == BEGAN
    assert timeline.shown()[0].began == BEGAN + 500


def test_of_a_host_that_is_slow_for_months_the_newest_word_is_kept() -> None:
    """A page has a line for each slow host, and holds no more: the one that was named last is last."""
    named = [{"event": "slow", "host": host, "message": "", "time": BEGAN + at} for at, host in enumerate([3, 1, 2, 1])]
    timeline = Timeline([*named, {**named[0], "message": "the newest", "time": BEGAN + 9}])
    assert [(slow.host, slow.time) for slow in timeline.slow] == [(2, BEGAN + 2), (1, BEGAN + 3), (3, BEGAN + 9)]
    assert timeline.slow[-1].message == "the newest"


def test_a_live_leader_tells_of_the_attempt_under_way() -> None:
    """The hosts of a status are those of the attempt that runs, up to now."""
    known = {"agent_pid": 1, "trainer_pid": 2, "phase": "step", "age_seconds": 0.1, "state": "R", "standby": True}
    hosts = [{**host(number), **known} for number in (0, 1)]
    status = RunStatus.model_validate(
        {"name": "x", "phase": "running", "attempt": 0, "ray_session": 1, "slowest_host": 0, "hosts": hosts}
    )
    timeline = Timeline(EVENTS[:4])
    timeline.live(status, BEGAN + 60)
    (attempt,) = timeline.attempts
    assert (attempt.ended, attempt.last, [each.step for each in attempt.hosts]) == (None, BEGAN + 60, [6, 6])
    assert [slow.host for slow in timeline.slow] == [1, 0]
