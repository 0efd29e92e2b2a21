"""The example of Levanter, unmodified, with the Levanter of .venv-levanter: `make test-levanter` runs this."""

import json
import os
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.cli.running import Run
from tests.hosts.conftest import agent_of
from tests.hosts.programs import EXAMPLES, ProgramShell
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer

from shardwise.protocol.contract import ExitCode, log_path

ENVIRONMENT = Path(__file__).parents[2] / ".venv-levanter" / "bin"
STEPS = 60
KEPT = 50
"""The step whose checkpoint both runs have: Levanter saves by the clock, and after the last step not again."""
Start = Callable[..., Run]


@pytest.fixture(scope="module")
def _shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProgramShell]:
    folder = tmp_path_factory.mktemp("levanter")
    made = ProgramShell(folder, folder / "cache")
    shutil.copy(folder / "documents.jsonl", folder / "text.jsonl")
    shutil.copy(EXAMPLES / "levanter_gpt2.yaml", folder)
    _tokenizer(folder)
    yield made
    made.remove()


@pytest.fixture
def start(_shell: ProgramShell) -> Iterator[Start]:
    """Return a function that starts a run of the example; after the test nothing of ours may remain."""

    def begin(name: str, *changes: str) -> Run:
        script = EXAMPLES / "levanter_gpt2.sh"
        words = ["env", f"PATH={ENVIRONMENT}:{os.environ['PATH']}", "HF_HUB_OFFLINE=1", "sh", str(script)]
        words += ["--trainer.num_train_steps", str(STEPS), "--trainer.checkpointer.save_interval", "2s"]
        words += ["--trainer.checkpointer.keep", json.dumps([{"every": KEPT}])]
        words += ["--trainer.checkpointer.base_path", str(_shell.folder / "saved" / name)]
        return _shell.begin(name, f"program.command={json.dumps(words)}", *changes)

    yield begin
    _shell.close()
    own = ("ray", "pymp-")  # what Levanter and its Ray leave for themselves
    assert [left for left in _shell.remains() if not Path(left).name.startswith(own)] == []


def test_a_run_ends_with_the_same_bits_whatever_becomes_of_it(start: Start) -> None:
    """Kill -9, SIGSTOP and a lost agent: each attempt goes on from Levanter's own newest checkpoint."""
    undisturbed = start("calm")
    undisturbed.finish()

    run = start("disturbed", "recovery.hangAfter=20s")
    newest = 0
    for attempt, number in enumerate((signal.SIGKILL, signal.SIGSTOP, None)):
        run.until(_newer(run, newest))
        newest = _newest(run)
        pid = run.status()["hosts"][1]["trainerPid"]
        if number is None:
            os.kill(agent_of(pid), signal.SIGKILL)
        else:
            os.kill(pid, number)
        run.until(log_path(run.directory, attempt + 1, 0).exists)
    assert run.finish()["restarts"] == {"failure": 1, "hang": 1, "hostLost": 1}

    began = [_resumed(run, attempt) for attempt in range(4)]
    assert began[0] is None
    assert all(began[1:]), f"an attempt has begun anew: {began}"
    assert _state(run) == _state(undisturbed) != {}


def test_a_stop_goes_on_from_its_newest_checkpoint(start: Start) -> None:
    """SIGTERM ends it, for it saves by its own clock alone; the same command goes on from its newest checkpoint."""
    run = start("stopped")
    run.until(lambda: _newest(run) > 0)
    assert run.send(signal.SIGTERM) == ExitCode.SAVED
    assert run.summary["status"] == "stopped"
    again = start("stopped")
    again.finish()
    assert _resumed(again, 1)


def _tokenizer(folder: Path) -> None:
    """Train a small tokenizer and write it to `gpt2`, which the example names: nothing is fetched from a hub."""
    made = Tokenizer(BPE())
    made.pre_tokenizer = ByteLevel(add_prefix_space=False)
    trainer = BpeTrainer(
        vocab_size=300, special_tokens=["<|endoftext|>"], initial_alphabet=ByteLevel.alphabet(), show_progress=False
    )
    made.train([str(folder / "text.jsonl")], trainer)
    (folder / "gpt2").mkdir()
    made.save(str(folder / "gpt2" / "tokenizer.json"))
    words = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>", "bos_token": "<|endoftext|>"}
    (folder / "gpt2" / "tokenizer_config.json").write_text(json.dumps(words))
    (folder / "gpt2" / "config.json").write_text(json.dumps({"model_type": "gpt2"}))


def _saved(run: Run) -> Path:
    return run.directory.parent / "saved" / run.directory.name / "levanter-gpt2"


def _newest(run: Run) -> int:
    """The step of Levanter's newest whole checkpoint, 0 if there is none."""
    return max([0, *(int(path.parent.name.removeprefix("step-")) for path in _saved(run).glob("step-*/metadata.json"))])


def _newer(run: Run, step: int) -> Callable[[], bool]:
    return lambda: _newest(run) > step


def _resumed(run: Run, attempt: int) -> int | None:
    """The step of the checkpoint that an attempt says it loads."""
    said = log_path(run.directory, attempt, 0).read_text()
    found = re.search(r"Loading checkpoint from .*step-(\d+)", said)
    return int(found[1]) if found else None


def _state(run: Run) -> dict[str, bytes]:
    """Every file of the arrays of its checkpoint after so many steps, by path."""
    folder = _saved(run) / f"step-{KEPT}"
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != "metadata.json")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}
