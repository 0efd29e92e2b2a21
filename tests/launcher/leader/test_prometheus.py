"""shardwise.launcher.leader.prometheus: the figures of a status, under the names that dashboards and alerts ask for."""

from prometheus_client.parser import text_string_to_metric_families

from shardwise.launcher.leader.prometheus import metrics
from shardwise.protocol.contract import Phase
from shardwise.protocol.run_status import CheckpointStatus, FailedSaves, HostStatus, RunProgress, RunStatus

JOB = 'job="x"'


def _host(number: int, *, pid: int | None = 7, own_seconds: float | None = 0.25) -> HostStatus:
    return HostStatus(
        host=number,
        agent_pid=1,
        trainer_pid=pid,
        phase=Phase.STEP if pid else None,
        step=10 + number,
        step_seconds=1.5,
        own_seconds=own_seconds,
        age_seconds=0.0,
        state="R",
        standby=False,
        phases={},
    )


def _samples(status: RunStatus) -> dict[str, float]:
    """Return what Prometheus reads, as name{labels}, the job first."""
    samples = {}
    for family in text_string_to_metric_families(metrics(status).decode()):
        for each in family.samples:
            labels = ",".join(
                f'{key}="{each.labels[key]}"' for key in sorted(each.labels, key=lambda key: key != "job")
            )
            samples[f"{each.name}{{{labels}}}"] = each.value
    return samples


def test_all_that_is_known_of_a_run() -> None:
    """One figure for the run, each host, each cause and each category."""
    progress = RunProgress(
        step=11, of=90, loss=2.5, held_out_loss=2.75, grad_norm=0.5, tokens_per_second=100.0, mfu=0.4
    )
    status = RunStatus(
        name="x",
        phase="running",
        attempt=2,
        ray_session=3,
        progress=progress,
        checkpoint=CheckpointStatus(step=10, age_seconds=30.0),
        local_step=14,
        failed_saves=FailedSaves(in_a_row=4, reason="503"),
        restarts={"hang": 1},
        goodput={"step": 60.0},
        hosts=(_host(0), _host(1, pid=None, own_seconds=None)),
    )

    assert _samples(status) == {
        f'shardwise_phase{{{JOB},phase="running"}}': 1.0,
        f"shardwise_attempt{{{JOB}}}": 2.0,
        f"shardwise_ray_session{{{JOB}}}": 3.0,
        f"shardwise_step{{{JOB}}}": 11.0,
        f"shardwise_steps{{{JOB}}}": 90.0,
        f"shardwise_loss{{{JOB}}}": 2.5,
        f"shardwise_held_out_loss{{{JOB}}}": 2.75,
        f"shardwise_grad_norm{{{JOB}}}": 0.5,
        f"shardwise_tokens_per_second{{{JOB}}}": 100.0,
        f"shardwise_mfu_ratio{{{JOB}}}": 0.4,
        f"shardwise_checkpoint_age_seconds{{{JOB}}}": 30.0,
        f"shardwise_local_checkpoint_step{{{JOB}}}": 14.0,
        f"shardwise_failed_saves{{{JOB}}}": 4.0,
        f'shardwise_restarts_total{{{JOB},cause="hang"}}': 1.0,
        f'shardwise_goodput_seconds_total{{{JOB},category="step"}}': 60.0,
        f'shardwise_host_up{{{JOB},host="0"}}': 1.0,
        f'shardwise_host_up{{{JOB},host="1"}}': 0.0,
        f'shardwise_host_step{{{JOB},host="0"}}': 10.0,
        f'shardwise_host_step{{{JOB},host="1"}}': 11.0,
        f'shardwise_host_step_seconds{{{JOB},host="0"}}': 1.5,
        f'shardwise_host_step_seconds{{{JOB},host="1"}}': 1.5,
        f'shardwise_host_own_seconds{{{JOB},host="0"}}': 0.25,
    }


def test_what_is_not_known_is_left_out() -> None:
    """No figure stands for it, nor for a loss that is no number; that no save has failed is known."""
    status = RunStatus(name="x", phase="waiting", ray_session=0, hosts=(), progress=RunProgress(loss="nan", mfu=None))

    assert _samples(status) == {
        f'shardwise_phase{{{JOB},phase="waiting"}}': 1.0,
        f"shardwise_ray_session{{{JOB}}}": 0.0,
        f"shardwise_failed_saves{{{JOB}}}": 0.0,
    }
