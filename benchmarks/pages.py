"""What the figures say: tables for the terminal and for docs/performance.md, from the same rows.

Called by `benchmarks.main` with the results of all parts that were measured. It measures nothing.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import rich.box
import rich.table
from benchmarks import bucket, checkpoint, generate, local_saves, notes, recovery, start
from benchmarks.aims import aims

AIMS = "Aims"
Results = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table, and what a reader must know to read it."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str]

    def rich(self) -> rich.table.Table:
        """For the terminal."""
        table = rich.table.Table(title=self.title, title_justify="left", box=rich.box.SIMPLE, caption_justify="left")
        for number, column in enumerate(self.columns):
            table.add_column(column, justify="right" if number else "left", overflow="fold")
        for row in self.rows:
            table.add_row(*row)
        table.caption = "\n".join(self.notes)
        return table

    def markdown(self) -> str:
        """For the page."""
        lines = [f"## {self.title}", "", _line(self.columns), _line(["---", *["---:"] * (len(self.columns) - 1)])]
        lines += [_line(row) for row in self.rows]
        return "\n".join([*lines, "", *(f"{note}\n" for note in self.notes)])


def tables(results: Results) -> list[Table]:
    """The tables of the parts that were measured, the aims first."""
    found = [_aims(results)] if results.keys() & {"step", "checkpoint", "bucket", "recovery"} else []
    for part, make in _MAKERS.items():
        if part in results:
            found += make(results[part])
    return found


def _aims(results: Results) -> Table:
    rows = [[aim.name, aim.wanted, aim.measured, "yes" if aim.met else "**no**"] for aim in aims(results)]
    return Table(title=AIMS, columns=["", "aim", "measured", "met"], rows=rows, notes=[])


def _step(part: Results) -> Iterator[Table]:
    for name, case in part["cases"].items():
        peers = case["peers"]
        rows = [
            [
                peer,
                f"{figures['tokens_per_second']['median']:,.0f}",
                _spread(figures["ratio"]),
                f"{100 * figures['mfu']:.0f} %",
                _mib(figures["argument_bytes"]),
                _mib(figures["temporary_bytes"]),
                f"{figures['peak_resident_bytes'] / 2**30:.2f}",
            ]
            for peer, figures in peers.items()
        ]
        against = ", ".join(f"{_spread(ratio)} of {peer}" for peer, ratio in case["against"].items())
        yield Table(
            title=f"Train step: {name}",
            columns=["", "tokens/s", "of the limit", "MFU", "state MiB/device", "temporaries MiB/device", "RSS GiB"],
            rows=rows,
            notes=[
                f"Shardwise is {against}.",
                notes.paragraph(notes.STEP),
                _measured(part, case["rounds"]),
            ],
        )


def _start(part: Results) -> Iterator[Table]:
    columns = [f"{peer}, {when}" for peer in ("Shardwise", "Levanter") for when in (start.COLD, start.WARM)]
    phases: dict[str, None] = {}
    for peer in ("Shardwise", "Levanter"):
        phases |= dict.fromkeys(part[peer][start.COLD])
    order = [phase for phase in phases if phase not in ("other", "total")] + ["other", "total"]
    rows = [
        [
            phase,
            *(
                _seconds(part[peer][when].get(phase))
                for peer in ("Shardwise", "Levanter")
                for when in (start.COLD, start.WARM)
            ),
        ]
        for phase in order
    ]
    yield Table(
        title=f"Command to first step: {part['case']}",
        columns=["", *columns],
        rows=rows,
        notes=[notes.paragraph(notes.START), _measured(part, part["rounds"])],
    )


def _checkpoint(part: Results) -> Iterator[Table]:
    savers, soak = part["savers"], part["soak"]
    tree = savers[checkpoint.RAW]["tree_bytes"]["median"] / 2**30
    names = dict(
        zip(
            checkpoint.TIMES,
            ("blocks", "durable", "restore", "restore on data 2 x tensor 4"),
            strict=True,
        )
    )
    rows = [[name, *(_timed(figures, key) for key in names)] for name, figures in savers.items()]
    yield Table(
        title=f"Checkpoint: {tree:.2f} GiB over 8 devices (data 4 x tensor 2)",
        columns=["seconds (times raw)", *names.values()],
        rows=rows,
        notes=[notes.paragraph(notes.CHECKPOINT), _measured(part, part["rounds"])],
    )
    memory = [
        [name, *(f"{figures[key]['median'] / 2**30:.2f}" for key in _MEMORY), f"{figures['files']['median'] / 2:.0f}"]
        for name, figures in savers.items()
    ]
    yield Table(
        title="Checkpoint: memory and files",
        columns=["", "save + GiB", "left after it", "restore + GiB", "other mesh + GiB", "files"],
        rows=memory,
        notes=[notes.paragraph(notes.MEMORY), _soaked(soak)],
    )


def _bucket(part: Results) -> Iterator[Table]:
    savers = part["savers"]
    tree = savers[checkpoint.SHARDWISE]["tree_bytes"]["median"] / 2**30
    names = dict(zip(bucket.TIMES, ("save", "restore", "restore on data 2 x tensor 4"), strict=True))
    rows = [
        [
            name,
            *(_timed(figures, key) for key in names),
            *(f"{figures[key]['median'] / 2**30:.2f}" for key in ("grown_bytes", "restore_grown_bytes")),
        ]
        for name, figures in savers.items()
    ]
    yield Table(
        title=f"Checkpoint in a bucket: {tree:.2f} GiB over 8 devices (data 4 x tensor 2)",
        columns=["seconds (times the client)", *names.values(), "save + GiB", "restore + GiB"],
        rows=rows,
        notes=[notes.paragraph(notes.BUCKET), _measured(part, part["rounds"])],
    )


def _local(part: Results) -> Iterator[Table]:
    keys = {local_saves.BLOCKED: "blocks", local_saves.WHOLE: "whole", local_saves.RESTORE: "restore"}
    rows = [[what, *(_spread(figures[key]) for key in keys)] for what, figures in part["seconds"].items()]
    yield Table(
        title=f"Local checkpoint: {part['tree_bytes'] / 2**30:.2f} GiB over 2 hosts",
        columns=["seconds", *keys.values()],
        rows=rows,
        notes=[notes.paragraph(notes.LOCAL), _measured(part, part["rounds"])],
    )


def _recovery(part: Results) -> Iterator[Table]:
    rows = [
        [what, _spread(spread), _spread(part["ratio"][what]) if what in part["ratio"] else ""]
        for what, spread in part["seconds"].items()
    ]
    phases = ", ".join(f"{name} {spread['median']:.2f}" for name, spread in part["phases"].items())
    yield Table(
        title=f"Killed, to the next completed step: tiny, {recovery.HOSTS} hosts x {recovery.DEVICES} devices",
        columns=["", "seconds", "times what is unavoidable"],
        rows=rows,
        notes=[
            notes.paragraph(notes.RECOVERY),
            f"Seconds of a lost trainer: {phases}.",
            _hung(part["hang"]),
            _measured(part, part["rounds"]),
        ],
    )


def _tokenize(part: Results) -> Iterator[Table]:
    rows = [
        [name, f"{figures['rate']['median'] / 1e6:.2f}", _spread(figures["ratio"])]
        for name, figures in part["peers"].items()
    ]
    scaled = ", ".join(f"{name} {_spread(spread)}" for name, spread in part["scaling"].items())
    yield Table(
        title=f"Text to tokens: {part['text_bytes'] / 1e6:.0f} MB of JSONL",
        columns=["", "MB/s", "times one thread"],
        rows=rows,
        notes=[notes.paragraph(notes.TOKENIZE), f"Two at once over one: {scaled}.", _measured(part, part["rounds"])],
    )


def _generate(part: Results) -> Iterator[Table]:
    rows = [
        [
            f"{case}, batch {batch}",
            *(f"{figures['tokens_per_second']['median']:,.0f}" for figures in peers.values()),
            *(_spread(peers[name]["ratio"]) for name in (generate.SHARDWISE, generate.SERVED)),
        ]
        for case, batches in part["cases"].items()
        for batch, peers in batches.items()
    ]
    yield Table(
        title="Generation: one device",
        columns=["tokens/s", generate.LIMIT, generate.SHARDWISE, "served", "of the limit", "served, of the limit"],
        rows=rows,
        notes=[notes.paragraph(notes.GENERATE), _measured(part, part["rounds"])],
    )


def _hung(hang: Mapping[str, Mapping[str, float]]) -> str:
    said, allowed, ended = (_spread(hang[what]) for what in (recovery.SAID, recovery.ALLOWED, recovery.ENDED))
    return (
        f"A trainer that stands still (SIGSTOP) was said to stall after {said} s, where three usual steps and 5 s are "
        f"{allowed} s; its attempt had ended after {ended} s, with hangAfter at {recovery.HANG_AFTER_SECONDS} s."
    )


_MEMORY = ("grown_bytes", "left_bytes", "restore_grown_bytes", "other_mesh_grown_bytes")
_MAKERS: Mapping[str, Callable[[Results], Iterator[Table]]] = {
    "step": _step,
    "start": _start,
    "checkpoint": _checkpoint,
    "bucket": _bucket,
    "local": _local,
    "recovery": _recovery,
    "tokenize": _tokenize,
    "generate": _generate,
}


def _soaked(soak: Mapping[str, float]) -> str:
    early, last = (f"{soak[key] / 2**20:,.0f} MiB" for key in ("early_bytes", "last_bytes"))
    return (
        f"{soak['saves']} saves of {soak['tree_bytes'] / 1e6:.0f} MB in a row: resident memory was {early} after the "
        f"fifth and {last} after the last."
    )


def _measured(part: Results, rounds: int) -> str:
    machine = part["machine"]
    counted = "1 round" if rounds == 1 else f"{rounds} rounds"
    return (
        f"{counted} on {machine['date']}: {machine['cores']} cores ({machine['processor']}), "
        f"{machine['memory_gib']:.0f} GiB, load at the start {machine['load']:.1f}; Python {machine['python']}, "
        f"JAX {machine['jax']}."
    )


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _spread(spread: Mapping[str, float]) -> str:
    return f"{spread['median']:.2f} ({spread['low']:.2f} - {spread['high']:.2f})"


def _seconds(spread: Mapping[str, float] | None) -> str:
    return "" if spread is None else f"{spread['median']:.2f}"


def _timed(figures: Mapping[str, Any], key: str) -> str:
    return f"{figures[key]['median']:.2f} ({figures['ratio'][key]['median']:.2f}x)"


def _mib(num_bytes: float) -> str:
    return f"{num_bytes / 2**20:.1f}"
