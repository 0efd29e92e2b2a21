"""Questions of lm-evaluation-harness, answered by it and by us: `make test-hf`, since `make test` has no torch."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from tests.cli.conftest import Command
from tests.cli.served import Served

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-hf" / "bin" / "python"
EXAMPLE = ROOT / "examples" / "questions_of_harness.py"


def there(*words: str | Path, **variables: str) -> None:
    """Run a program where torch and the harness are."""
    subprocess.run([PYTHON, *words], cwd=ROOT, env=os.environ | variables, check=True)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["no_such_task", "0", "a.jsonl"], "TASK: given no_such_task, which the harness does not know"),
        (["arc_easy", "few", "a.jsonl"], "EXAMPLES: given few, expected a number"),
        (["arc_easy", "0"], "expected TASK EXAMPLES FILE [FOLDER], given 2 words"),
    ],
)
def test_a_task_that_is_none_is_refused_in_words(words: list[str], told: str) -> None:
    """Nothing is fetched or written."""
    ended = subprocess.run([PYTHON, EXAMPLE, *words], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert told in ended.stderr
    assert "Traceback" not in ended.stderr


def test_the_harness_finds_the_same(tmp_path: Path, process: Command) -> None:
    """Of a task of its own, with examples before each question, by a model as it is published, and by its server."""
    there("-m", "tests.train.weights.hf.harness_there", tmp_path)
    there(EXAMPLE, "fruits", "2", tmp_path / "fruits.jsonl", tmp_path / "task")
    made = process("import", str(tmp_path / "model"), "run", folder=tmp_path)
    assert made.code == 0, made.error
    sets = "--set=training.evaluation.sets=[{name: fruits, paths: [fruits.jsonl], questions: true}]"
    ended = process("evaluate", "run", sets, "--json", folder=tmp_path)
    assert ended.code == 0, ended.error
    ours, theirs = json.loads(ended.out)["sets"]["fruits"], json.loads((tmp_path / "found.json").read_text())
    assert ours["questions"] == 300
    assert (ours["accuracy"], ours["accuracyNorm"]) == pytest.approx((theirs["acc"], theirs["acc_norm"]))
    assert ours["accuracy"] != ours["accuracyNorm"]

    with Served(tmp_path, tmp_path / "cache", "run", "--port", "0", "--logprobs") as served:
        address = f"{served.client.base_url}completions"
        [model] = served.client.get("models").json()["data"]
        asks = ("-m", "tests.train.weights.hf.harness_there", tmp_path, address, model["id"])
        there(*asks, OPENAI_API_KEY=served.token)
    assert json.loads((tmp_path / "found.json").read_text()) == theirs
