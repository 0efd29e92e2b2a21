"""Evaluations while a run trains: every set each time, by one program, and the results wherever a person looks."""

import json
from io import StringIO
from pathlib import Path

import pytest
from tests.train.conftest import run_here

from shardwise.cli.run_files import read_overview
from shardwise.page.gather import gather
from shardwise.protocol.contract import ExitCode
from shardwise.train.metrics import records

TEXT = "".join(f'{{"text": "{number} green bottles, and no more."}}\n' for number in range(2000))


def directory_of(tmp_path: Path, name: str) -> Path:
    """Make the directory of a run."""
    directory = tmp_path / name
    (directory / "logs").mkdir(parents=True)
    (directory / ".lock").touch()
    return directory


def words(tmp_path: Path, *sets: str) -> list[str]:
    """A job of two steps, evaluated after the second, with these sets and held-out documents."""
    (tmp_path / "text.jsonl").write_text(TEXT)
    (tmp_path / "books.txt").write_text("call me Ishmael")
    (tmp_path / "web.txt").write_text("buy this " * 3000)
    return [
        f"training.data={{train: [{{name: text, paths: [{tmp_path}/text.jsonl]}}], heldOut: 0.5}}",
        f"training.evaluation={{everySteps: 2, batches: 2, sets: [{', '.join(sets)}]}}",
        "training.model.layers=1",
        "training.steps=2",
    ]


@pytest.mark.usefixtures("as_a_trainer")
def test_sets_are_evaluated_beside_the_held_out_documents(tmp_path: Path) -> None:
    """Each as far as its batches go; the results do not depend on the mesh, and are in every place that shows a run."""
    books = f"{{name: books, paths: [{tmp_path}/books.txt]}}"
    web = f"{{name: web, paths: [{tmp_path}/web.txt], batches: 1}}"
    directory = directory_of(tmp_path, "run")
    given = words(tmp_path, books, web)
    assert run_here(directory, *given, "training.tracking.tensorboard=true") == ExitCode.OK

    (event,) = [record for record in records(directory / "metrics.jsonl") if record.get("event") == "evaluated"]
    sets = event["sets"]
    assert (event["step"], list(sets)) == (2, ["books", "web"])
    assert sets["books"]["tokens"] == len("call me Ishmael")  # the end of the text is a target, its first token is none
    assert sets["web"]["tokens"] == 16 * 32
    assert event["tokens"] == 2 * 16 * 32

    other = directory_of(tmp_path, "other-mesh")
    assert run_here(other, *words(tmp_path, web, books), "training.mesh.tensor=2") == ExitCode.OK
    (again,) = [record for record in records(other / "metrics.jsonl") if record.get("event") == "evaluated"]
    assert again["heldOutLoss"] == pytest.approx(event["heldOutLoss"], rel=1e-5)
    for name, values in sets.items():
        assert again["sets"][name] == pytest.approx(values, rel=1e-5)

    assert json.loads((directory / "summary.json").read_text())["evaluated"]["sets"] == sets
    run = read_overview(directory)
    assert run.as_json()["evaluated"]["sets"].keys() == {"heldOut", "books", "web"}
    page = gather(directory)
    assert page.set_losses == {name: pytest.approx(values["loss"]) for name, values in sets.items()}
    assert {"heldOutLoss", "books/loss", "web/loss"} <= {series.name for series in page.series}
    tensorboard = b"".join(path.read_bytes() for path in (directory / "logs" / "tensorboard").iterdir())
    assert all(name in tensorboard for name in (b"heldOutLoss", b"books/loss", b"web/accuracy"))
    assert (directory / "loss.png").exists()


@pytest.mark.usefixtures("as_a_trainer")
def test_sets_need_no_held_out_documents(tmp_path: Path) -> None:
    """A job that holds nothing out is evaluated on its sets alone; sets change nothing of what is trained."""
    plain = directory_of(tmp_path, "plain")
    given = words(tmp_path)
    given[0] = f"training.data.train.0.paths=[{tmp_path}/text.jsonl]"
    given[1] = "training.steps=2"
    assert run_here(plain, *given) == ExitCode.OK
    given[1] = f"training.evaluation={{everySteps: 1, sets: [{{name: books, paths: [{tmp_path}/books.txt]}}]}}"
    with_sets = directory_of(tmp_path, "with-sets")
    assert run_here(with_sets, *given) == ExitCode.OK

    events = [record for record in records(with_sets / "metrics.jsonl") if record.get("event") == "evaluated"]
    assert [(event["step"], "heldOutLoss" in event, list(event["sets"])) for event in events] == [
        (1, False, ["books"]),
        (2, False, ["books"]),
    ]
    digests = [json.loads((one / "summary.json").read_text())["digest"] for one in (plain, with_sets)]
    assert digests[0] == digests[1]


@pytest.mark.usefixtures("as_a_trainer")
def test_a_run_too_short_for_an_evaluation_says_so(tmp_path: Path) -> None:
    """Once, and it trains."""
    directory = directory_of(tmp_path, "short")
    said = StringIO()
    assert run_here(directory, *words(tmp_path), "training.evaluation.everySteps=3", said=said) == ExitCode.OK

    line = "nothing will be evaluated: evaluation.everySteps is 3, and steps 2"
    assert " ".join(said.getvalue().split()).count(line) == 1
    assert not [record for record in records(directory / "metrics.jsonl") if record.get("event") == "evaluated"]
