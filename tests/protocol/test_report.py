"""What a host reports of its trainer, as people see it."""

from shardwise.launcher.leader.events import host_times
from shardwise.protocol.contract import Phase, Progress
from shardwise.protocol.report import Report
from shardwise.protocol.run_status import HostStatus

DOING = "tokenising web: 1.0 of 9.0 MB, 0:01:20 left"


def report(trainer_pid: int | None, phase: Phase = Phase.DATA) -> Report:
    """A host whose trainer prepares data, or another phase, or was ended meanwhile."""
    progress = Progress(
        attempt=0,
        rank=0,
        phase=phase,
        step=0,
        dispatched=0,
        step_seconds=0.0,
        monotonic_seconds=1.0,
        pid=7,
        seconds={},
        doing=DOING,
    )
    return Report(
        version=1,
        host=0,
        agent_id="a",
        agent_pid=3,
        trainer_pid=trainer_pid,
        attempt=0,
        progress=progress,
        age_seconds=0.5,
        resting_seconds=0.0,
        process_state="R",
        exit=None,
        standby=False,
        stop_asked=False,
    )


def test_what_a_long_phase_is_at_is_told_while_there_is_a_trainer() -> None:
    """The last words of a trainer that is gone are no news."""
    assert (report(7).doing, report(None).doing) == (DOING, "")
    assert HostStatus.of(report(7)).doing == DOING


def test_what_is_told_of_a_host() -> None:
    """By its trainer's last record; one that was ended keeps its figures, and has no phase any more."""
    told = {"step": 5, "step_seconds": 1.5, "own_seconds": 0.25, "seconds": {Phase.STEP: 7.123456}}
    stepping = report(7, Phase.STEP)
    assert stepping.progress is not None
    measured = stepping.model_copy(update={"progress": stepping.progress.model_copy(update={**told, "measured": 1})})
    unmeasured = stepping.model_copy(update={"progress": stepping.progress.model_copy(update=told)})

    status = HostStatus.of(measured)
    assert (status.phase, status.step, status.step_seconds, status.own_seconds) == (Phase.STEP, 5, 1.5, 0.25)
    assert (status.trainer_pid, status.age_seconds, status.phases) == (7, 0.5, {Phase.STEP: 7.1235})
    assert HostStatus.of(unmeasured).own_seconds is None
    ended = HostStatus.of(measured.model_copy(update={"trainer_pid": None}))
    assert (ended.phase, ended.trainer_pid, ended.step) == (None, None, 5)


def test_a_program_that_reports_some_of_its_steps() -> None:
    """A host's time of a step is that of one, of the twenty that were reported together."""
    stepping = report(7, Phase.STEP)
    assert stepping.progress is not None
    progress = stepping.progress.model_copy(update={"step": 40, "step_seconds": 1.0, "steps": 20})
    assert HostStatus.of(stepping.model_copy(update={"progress": progress})).step_seconds == 0.05
    assert host_times({0: progress})[0]["stepSeconds"] == 0.05


def test_a_host_whose_trainer_has_said_nothing_yet() -> None:
    """It starts, and no figure is known."""
    status = HostStatus.of(report(7).model_copy(update={"progress": None}))

    assert (status.phase, status.step, status.step_seconds) == (Phase.START, 0, 0.0)
    assert (status.own_seconds, status.doing, status.phases) == (None, "", {})


def test_a_trainer_has_joined_once_it_no_longer_waits_for_the_others() -> None:
    """One that was ended has not, wherever it was."""
    joined = {phase for phase in Phase if report(7, phase).joined}

    assert joined == {*Phase} - {Phase.START, Phase.JOIN}
    assert not report(None).joined
