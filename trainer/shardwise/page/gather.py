"""Reads a run directory into the document of its page. Nothing is written, and no process of the run is needed."""

import json
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from shardwise.job.batch_sizes import steps_left
from shardwise.job.load import resolved_in
from shardwise.job.spec import TrainingJob
from shardwise.page.curves import HELD_OUT, Metrics
from shardwise.page.document import MemoryRow, PageDocument, Save
from shardwise.page.events import launcher_events
from shardwise.page.log_tails import log_tails
from shardwise.page.status import UNDER_WAY, status_word
from shardwise.page.timeline import Timeline, notice
from shardwise.protocol.contract import METRICS, SUMMARY, checkpoint_root
from shardwise.protocol.eta import eta_seconds
from shardwise.protocol.leader_record import LeaderRecord
from shardwise.protocol.run_status import RunStatus
from shardwise.protocol.shared_files import summary_of_run

MOST_NOTICES = 200
MOST_SAVES = 100
_STARTS = ("started", "restored")
_SHOWN_ELSEWHERE = (*_STARTS, "saved", "stopped", "complete", "profiled")
_SIZES = ("params_bytes", "optimizer_bytes", "batch_bytes", "temporary_bytes")


def gather(
    directory: Path,
    *,
    url: str | None = None,
    status: str | None = None,
    live: RunStatus | None = None,
    metrics: Metrics | None = None,
    checkpoints: Callable[[str], Collection[int] | None] = lambda _: None,
    logs: bool = True,
) -> PageDocument:
    """Return the document of a run.

    Args:
        directory: the run directory.
        url: what a person calls it, if it is a copy of one in a bucket.
        status: as `shardwise status` names it; not needed with what a leader says.
        live: what its leader says, None without one.
        metrics: what has been read of its metrics before; None to read them whole.
        checkpoints: returns the committed steps that are in a folder or bucket now, None if that is not known.
        logs: whether the ends of the trainers' logs are read, of which there is one for each host and attempt.

    """
    now = time.time()
    summary = _summary(directory)
    if live or status is None:
        status = status_word(summary, alive=live is not None, live=live)
    if metrics is None:
        metrics = Metrics(directory / METRICS)
    else:
        metrics.read()
    timeline = Timeline(launcher_events(directory))
    if live:
        timeline.live(live, now)
    job = resolved_in(directory)
    record = LeaderRecord.read(directory)
    starts = [event for event in metrics.events if event["event"] in _STARTS]
    root = checkpoint_root(job.spec.checkpoint_path if job else None, url or directory)
    steps = (job and job.spec.num_steps) or summary.get("of")
    running = status in UNDER_WAY
    left = steps_left(job.spec.training_if_any if job else None, metrics.last_step, steps) if running else None
    return PageDocument(
        name=live.name if live else _name(job, summary, directory),
        directory=url or str(directory),
        made_at=now,
        status=status,
        live=running,
        program=metrics.of_program,
        phase=live.phase if live else None,
        reason=live.reason if live else "",
        error="" if running else summary.get("error") or "",  # of a live run it is of the command before
        step=metrics.last_step,
        num_steps=steps,
        eta_seconds=eta_seconds(left, metrics.recent_steps),
        loss=metrics.last("loss"),
        tokens_per_second=metrics.recent("tokensPerSecond"),
        mfu=metrics.recent("mfu"),
        held_out_loss=metrics.last(HELD_OUT),
        set_losses=metrics.set_losses(),
        set_answered=metrics.set_answered(),
        set_rewards=metrics.set_rewards(),
        began=timeline.attempts[0].began if timeline.attempts else None,
        attempts_made=len(timeline.attempts),
        restarts=live.restarts if live else (record.restarts if record else summary.get("restarts", {})),
        entropy=summary.get("entropy", {}),
        series=metrics.series(),
        others=metrics.others,
        resumed=[event["step"] for event in starts if event["event"] == "restored"],
        **_goodput(summary, record, live),
        attempts=timeline.shown(),
        slow=timeline.slow,
        **_notices(timeline, metrics),
        evaluations=list(metrics.evaluations),
        checkpoint_root=root,
        **_saves(metrics, checkpoints(root)),
        mesh=_mesh(starts[-1].get("mesh", {})) if starts else {},
        devices=starts[-1].get("devices") if starts else None,
        memory=_memory(starts[-1].get("memory", []), starts[-1].get("devices")) if starts else [],
        **(log_tails(directory, {attempt.number: attempt.rank for attempt in timeline.attempts}) if logs else {}),
        digest=summary.get("digest") or "",
    )


def _summary(directory: Path) -> dict[str, Any]:
    try:
        read = json.loads((directory / SUMMARY).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):  # before the first start; the next one writes it anew
        return {}
    return summary_of_run(read) if isinstance(read, dict) else {}


def _name(job: TrainingJob | None, summary: Mapping[str, Any], directory: Path) -> str:
    return job.metadata.name if job else summary.get("name") or directory.name


def _goodput(summary: Mapping[str, Any], record: LeaderRecord | None, live: RunStatus | None) -> dict[str, Any]:
    """Return the wall time by category, the surest source first."""
    if live:
        return {"goodput": live.goodput, "goodput_of": "the command so far"}
    if record and record.result is None:
        # It did not live to say which of the steps were lost.
        return {"goodput": record.goodput, "goodput_of": "the last command up to its sudden end, lost steps not apart"}
    return {"goodput": summary.get("goodput", {}), "goodput_of": "the last command"}


def _notices(timeline: Timeline, metrics: Metrics) -> dict[str, Any]:
    untimed = [notice(event) for event in metrics.events if event["event"] not in _SHOWN_ELSEWHERE]
    every = [*timeline.notices, *untimed]
    return {"notices": every[-MOST_NOTICES:], "notices_left_out": max(0, len(every) - MOST_NOTICES)}


def _saves(metrics: Metrics, checkpoints: Collection[int] | None) -> dict[str, Any]:
    """Return the commits that count: of a step that was saved again after a restart, the last one.

    One that was set aside is not kept. It is still returned, as one that was deleted is.
    """
    newest: dict[int, Save] = {}
    for event in metrics.events:
        if event["event"] == "saved":
            newest.pop(event["step"], None)
            newest[event["step"]] = Save.model_validate(event)
        elif event["event"] == "setAside":
            aside = newest.keys() & set(event.get("steps", ()))
            newest |= {step: newest[step].model_copy(update={"kept": False}) for step in aside}
    every = [
        save if checkpoints is None else save.model_copy(update={"kept": save.step in checkpoints})
        for save in newest.values()
    ]
    return {"saves": every[-MOST_SAVES:], "saves_left_out": max(0, len(every) - MOST_SAVES)}


def _mesh(axes: Mapping[str, int]) -> dict[str, int]:
    """Return the mesh as a job file has it: `data` is one axis there, and the trainer's are its two steps."""
    sizes: dict[str, int] = {}
    for axis, size in axes.items():
        name = axis.partition("_")[0]
        sizes[name] = sizes.get(name, 1) * size
    return sizes


def _memory(rows: Collection[Mapping[str, Any]], num_devices: int | None) -> list[MemoryRow]:
    """Return one row for the devices that hold the same. A trainer names a few where all of them do."""
    alike: dict[tuple[int, ...], list[str]] = {}
    for row in rows:
        alike.setdefault(tuple(row[size] for size in _SIZES), []).append(row["device"])
    most = num_devices if num_devices and len(alike) == 1 else 0
    return [
        MemoryRow(devices=names[0], count=max(most, len(names)), **dict(zip(_SIZES, sizes, strict=True)))
        for sizes, names in alike.items()
    ]
