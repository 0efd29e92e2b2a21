"""Two hosts that tokenise into one store and train on a mixture that changes: kills and other hosts change nothing."""

import json
from pathlib import Path

import pytest
from tests.cli.shell import Shell
from tests.hosts.disturbing import disturb, host, in_phase, trainer

from shardwise.protocol.contract import Phase


@pytest.mark.long
def test_a_changing_mixture_of_a_shared_store_is_the_same_run_after_kills(tmp_path: Path) -> None:
    """A source by epochs, three phases, dedup: killed in each phase the run ends in the state of the undisturbed one.

    The killed run finds the store that the undisturbed one has made, whose hosts have read its tokens, and the line of
    the run says how many documents repeat others.
    """
    for name in ("prose", "code", "late"):
        lines = [json.dumps({"text": f"{name} {number - number % 10 // 9} of many"}) for number in range(700)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    sources = "[{name: prose, paths: [prose.jsonl], epochs: 0.5}, {name: code, paths: [code.jsonl]}, "
    sources += "{name: late, paths: [late.jsonl], weight: 0}]"
    phases = "[{fromStep: 7, weights: {code: 1, late: 3}}, {fromStep: 14, weights: {late: 1}}]"
    with Shell(
        tmp_path,
        tmp_path / "cache",
        (
            "hardware.topology=2x2",
            "training.model={layers: 2, heads: 2, embed: 32, seqLen: 32}",
            f"training.data={{train: {sources}, phases: {phases}, dedup: exact, store: tokens}}",
            "training.batch.sequences=32",
            "training.steps=40",  # many more than three kills need, also of a machine that is slow to kill
            "training.checkpoint={everySteps: 2}",
        ),
    ) as shell:
        undisturbed = shell.finish("undisturbed")
        parts = {path: path.stat().st_mtime_ns for path in (tmp_path / "tokens").rglob("*.tokens")}

        run = shell.begin("killed")
        disturb(
            run,
            trainer(in_phase(Phase.STEP, rank=1, further=4)),
            host(in_phase(Phase.STEP, rank=1, further=4)),
            trainer(in_phase(Phase.STEP, rank=0, further=4)),
        )
        killed = run.finish()

        assert killed["digest"] == undisturbed["digest"]
        assert sum(killed["restarts"].values()) == 3
        assert {path: path.stat().st_mtime_ns for path in (tmp_path / "tokens").rglob("*.tokens")} == parts
        assert len(parts) == 3
        assert run.output.count(", without 70 repeated documents") == 3 * killed["attempts"]
