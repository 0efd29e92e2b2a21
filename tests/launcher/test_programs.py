"""Programs on one host or two, most without the library: what they are told, how an end or silence is understood."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.cli.conftest import COMMAND
from tests.cli.running import Run
from tests.hosts.conftest import agent_of
from tests.hosts.programs import ProgramShell
from tests.long import all_but

from shardwise.cli.live import ask
from shardwise.protocol.contract import ExitCode, log_path

NONE = "{failure: 0, outOfMemory: 0, storage: 0}"
WAITS = "import time\nprint('waits', flush=True)\nwhile True: time.sleep(0.05)\n"


@pytest.fixture(scope="module")
def _shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProgramShell]:
    folder, cache = tmp_path_factory.mktemp("programs"), tmp_path_factory.getbasetemp() / "cache"
    with ProgramShell(folder, cache, "script.py", topology="1x3") as made:
        yield made


@pytest.fixture
def shell(_shell: ProgramShell) -> Iterator[ProgramShell]:
    """Return the folder with the job; after the test nothing of its runs may remain."""
    yield _shell
    _shell.close()
    assert _shell.remains() == []


def begin(shell: ProgramShell, name: str, script: str, *changes: str) -> Run:
    """Start a run of the script."""
    (shell.folder / "script.py").write_text(script)
    return shell.begin(name, *changes)


def log(run: Run, attempt: int = 0) -> str:
    """What the program wrote in one attempt."""
    path = log_path(run.directory, attempt, 0)
    return path.read_text() if path.exists() else ""


def status(shell: ProgramShell, run: Run) -> list[str]:
    """Return what `shardwise status` says, line by line."""
    return [" ".join(line.split()) for line in shell.call("status", run.directory.name).stdout.splitlines()]


def test_what_it_is_told(shell: ProgramShell) -> None:
    """It has its place, as we and as torch name it, simulated devices, its own variables and folder, and no token."""
    script = "import json, os, sys; print(json.dumps([dict(os.environ), os.getcwd(), sys.stdin.read()]))"
    (shell.folder / "elsewhere").mkdir()
    (shell.folder / "elsewhere" / "script.py").write_text(script)
    run = begin(shell, "told", "", "program.env={MINE: yes-mine}", "program.workdir=elsewhere")
    assert run.finish()["status"] == "complete"
    variables, folder, given = json.loads(log(run))

    expected = {
        "SHARDWISE_JOB": "mine",
        "SHARDWISE_RUN_DIRECTORY": str(run.directory),
        "SHARDWISE_RANK": "0",
        "SHARDWISE_NUM_PROCESSES": "1",
        "SHARDWISE_ATTEMPT": "0",
        "SHARDWISE_HANG_AFTER": "300.0",
        "RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "JAX_NUM_CPU_DEVICES": "3",
        "JAX_PLATFORMS": "cpu",
        "MINE": "yes-mine",
    }
    assert expected == {name: variables[name] for name in expected}
    assert variables["SHARDWISE_COORDINATOR"].rpartition(":")[2] != variables["MASTER_PORT"]
    assert (folder, given) == (str(shell.folder / "elsewhere"), "")
    token = json.loads((run.directory / "logs" / "leader.json").read_text())["scratch"]
    assert not [name for name, value in variables.items() if "token" in value.lower() and token in value]


def test_what_a_run_within_a_program_is_told(shell: ProgramShell) -> None:
    """Nothing of the program that gives the command: its deadline and folder of checkpoints are not this run's."""
    outer = {"SHARDWISE_CHECKPOINTS": "gs://outer/run", "SHARDWISE_DEADLINE": "5.0", "SHARDWISE_RANK": "7"}
    script = "import json, os; print(json.dumps(dict(os.environ)))"
    options = ["--hosts", "1", "--devices", "1", "--dir", "within"]
    told = [f"{name}={value}" for name, value in outer.items()]
    run = shell.begin_command("within", "env", *told, *COMMAND, "run", *options, "--", sys.executable, "-c", script)
    assert run.finish()["status"] == "complete"
    variables = json.loads(log(run))
    assert {name: variables[name] for name in outer if name in variables} == {"SHARDWISE_RANK": "0"}


@pytest.mark.parametrize(
    ("code", "cause"),
    [(1, "failure"), (3, "failure"), (83, "outOfMemory"), (84, "storage"), (81, "badInput")],
)
def test_an_exit_code_names_its_cause(shell: ProgramShell, code: int, cause: str) -> None:
    """The codes that the trainer ends with mean the same of a program; any other is a failure."""
    run = begin(shell, f"code-{code}", f"print('about to end'); raise SystemExit({code})", "recovery.restarts=" + NONE)
    assert run.wait() == (code if code in (81, 83, 84) else ExitCode.FAILURE)
    assert (run.summary["status"], run.summary["cause"], run.summary["exit"]) == ("failed", cause, f"exit code {code}")
    assert "about to end" in run.summary["logTail"]


def test_signals_that_python_ignores(shell: ProgramShell) -> None:
    """They end a program as they do where a shell starts it, as where it writes into a pipe that nobody reads."""
    command = "program={command: [sh, -c, 'yes | head -n 1; grep SigIgn /proc/self/status']}"
    run = begin(shell, "signals", "", command)
    run.finish()
    first, ignored = log(run).splitlines()
    assert first == "y"
    assert not any(int(ignored.split()[1], 16) >> number - 1 & 1 for number in (signal.SIGPIPE, signal.SIGXFSZ))


def test_a_command_that_is_not_there(shell: ProgramShell) -> None:
    """It is refused in words, once."""
    run = begin(shell, "missing", "", "program.command=[pythn, script.py]")
    assert run.wait() == ExitCode.BAD_INPUT
    assert "error: spec.program.command: given 'pythn'" in run.summary["logTail"]
    assert run.summary["restarts"] == {}


def test_a_module_that_fails_once(shell: ProgramShell) -> None:
    """`module` is started as python -m does; after a failure it starts anew, and knows that from its variables."""
    script = "import os\nassert os.environ['SHARDWISE_ATTEMPT'] == '1', 'the first time'\n"
    run = begin(shell, "module", script, "program={module: script}")
    summary = run.finish()
    assert (summary["status"], summary["attempts"], summary["restarts"]) == ("complete", 2, {"failure": 1})
    assert "AssertionError: the first time" in log(run)


def test_an_error_that_comes_each_time(shell: ProgramShell) -> None:
    """A mistake in the script is tried again too: three times, if the job says nothing else, and then the run ends."""
    run = begin(shell, "mistake", "raise ValueError('no batch')", "recovery={backoff: 10ms}")
    assert run.wait() == ExitCode.FAILURE
    assert (run.summary["status"], run.summary["attempts"], run.summary["restarts"]) == ("failed", 4, {"failure": 3})
    assert all("ValueError: no batch" in log(run, attempt) for attempt in range(4))


def test_silence_is_a_hang(shell: ProgramShell) -> None:
    """A program that neither works nor writes for hangAfter is ended."""
    run = begin(shell, "hangs", WAITS, "recovery={hangAfter: 6s, restarts: {hang: 0}}")
    assert run.wait() == ExitCode.FAILURE
    assert (run.summary["cause"], run.summary["status"]) == ("hang", "failed")
    assert "no progress for" in run.summary["error"]


ALIKE = """
import jax, shardwise
run = shardwise.init(steps=2)
shardwise.report(step=1, loss=0.5)
for step in (1, 2):
    shardwise.checkpoint.save({"model": jax.numpy.ones(4), "step": 1}, step)
"""


def test_copies_that_are_alike(shell: ProgramShell) -> None:
    """Two processes of which each has arrays of JAX for itself alone are told, once, that both may do the same work.

    Those with arrays of both, or of numpy, are told nothing: tests/hosts/test_own_program.py.
    """
    run = begin(shell, "alike", ALIKE, "hardware.topology=2x1")
    run.finish()
    assert run.output.count("each of the 2 processes has all of step 1 for itself") == 1


LEAVES = """
import sys, shardwise
run = shardwise.init()
for step in range(1, 1000):
    shardwise.report(step=step)
    if step == 5 and run.rank == 1:
        sys.exit(81)
"""


def test_one_process_of_two_that_exits(shell: ProgramShell) -> None:
    """It does not wait for the other, which waits for it: its exit code ends the run at once."""
    run = begin(shell, "exits", LEAVES, "hardware.topology=2x1", "recovery={hangAfter: 6s}")
    assert run.wait() == ExitCode.BAD_INPUT
    assert (run.summary["cause"], run.summary["exit"]) == ("badInput", "exit code 81")


def test_an_init_that_comes_too_late(shell: ProgramShell) -> None:
    """A script that has used JAX before it joins the others is told so, once, in words."""
    run = begin(shell, "late", "import jax, shardwise\njax.random.key(0)\nshardwise.init()\n", "hardware.topology=2x1")
    assert run.wait() == ExitCode.USAGE
    assert (run.summary["cause"], run.summary["restarts"]) == ("badInput", {})
    assert "error: shardwise.init() came too late: call it before the script makes any array" in run.output
    assert "Traceback" not in run.output


STARTS_ANOTHER = """
import subprocess, sys, shardwise
run = shardwise.init(steps=2)
child = "import shardwise; run = shardwise.init(%s); print(run.directory, run.num_processes, run.attempt, flush=True)"
child += "; shardwise.checkpoint.save({'n': 9}, 9)"
for given in ("directory='others'", ""):
    print(subprocess.run([sys.executable, "-c", child % given]).returncode, flush=True)
for step in (1, 2):
    shardwise.report(step=step)
shardwise.checkpoint.save({"n": 2}, 2)
"""


@pytest.mark.long  # a helper that is forked, below, is told from the program in the same way
def test_a_script_that_starts_another(shell: ProgramShell) -> None:
    """The other has no part in the run: it is a run by itself in a directory of its own, and without one is refused."""
    run = begin(shell, "starts", STARTS_ANOTHER, "recovery.restarts=" + NONE)
    summary = run.finish()
    assert (summary["status"], summary["steps"], summary["restarts"]) == ("complete", 2, {})
    assert [path.name for path in (run.directory / "checkpoints").glob("step-*")] == ["step-00000002"]
    assert (shell.folder / "others" / "checkpoints" / "step-00000009" / "COMMITTED").exists()
    own, code, refused, its_code = log(run).splitlines()
    assert (own, code, its_code) == (f"{shell.folder}/others 1 0", "0", str(ExitCode.USAGE.value))
    assert refused.startswith("error: shardwise.init(): another process on this host has the part of it in the run")


FORKS = """
import os, sys, jax, shardwise
from shardwise.protocol.errors import UsageError
run = shardwise.init(steps=4)
everywhere = jax.NamedSharding(run.mesh(data=None), jax.P())
state, first = shardwise.checkpoint.restore(like=jax.device_put({"x": jax.numpy.zeros(4)}, everywhere))
for step in range(1, 5):
    state = jax.jit(lambda tree: {"x": tree["x"] + 1})(state)
    shardwise.report(step=step, loss=1.0)
    if step in (2, 3):
        helper = os.fork()
        if helper == 0:
            if step == 3:
                raise ValueError("the helper's own")
            for call in (shardwise.init, shardwise.should_stop):
                try:
                    call()
                except UsageError as error:
                    print(error, flush=True)
            sys.exit(7)
        print(os.waitstatus_to_exitcode(os.waitpid(helper, 0)[1]), flush=True)
    shardwise.checkpoint.save(state, step)
"""


def test_a_forked_helper_that_ends(shell: ProgramShell) -> None:
    """It ends as any process does, by its own code or error, and the run has no part in that: all goes on as before."""
    run = begin(
        shell, "forks", FORKS, "hardware.topology=2x1", "recovery={restarts: {hang: 0, failure: 0}, hangAfter: 20s}"
    )
    summary = run.finish()
    assert (summary["status"], summary["steps"], summary["restarts"]) == ("complete", 4, {})
    said = log(run)
    words = "in a process that its script has forked, which is no part of the run"
    assert [line for line in said.splitlines() if line.isdecimal()] == ["7", "1"]
    assert (said.count(words), said.count("ValueError: the helper's own")) == (2, 1)
    assert [event["step"] for event in run.records("saved")] == [1, 2, 3, 4]


CHILD = "import time\nend = time.monotonic() + 15\nwhile time.monotonic() < end: sum(range(100_000))"
SIGNS = {
    "output": "import time\nfor _ in range(50):\n    print('on it')\n    time.sleep(0.3)\n",
    "work": CHILD,
    "work of a child": f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {CHILD!r}], check=True)\n",
}


@pytest.mark.parametrize("sign", all_but(["output"], SIGNS))
def test_signs_of_life(shell: ProgramShell, sign: str) -> None:
    """One that writes, or works, or has another program work, for longer than hangAfter, is no hang."""
    run = begin(shell, sign.replace(" ", "-"), SIGNS[sign], "recovery={hangAfter: 6s, restarts: {hang: 0}}")
    assert run.finish()["restarts"] == {}


@pytest.mark.parametrize(
    "handler",
    [
        "",
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))",
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))",
    ],
    ids=["default", "ends with 0", "as a shell does"],
)
def test_a_stop(shell: ProgramShell, handler: str) -> None:
    """SIGTERM reaches it, and however it ends then, the run is stopped and can go on: it is not complete."""
    run = begin(shell, f"stop-{len(handler)}", f"import signal, sys\n{handler}\n{WAITS}")
    run.until(lambda: "waits" in log(run))
    assert run.send(signal.SIGTERM) == ExitCode.SAVED
    assert (run.summary["status"], run.summary["restarts"]) == ("stopped", {})
    assert "stopped; what the program has saved is its own affair; the same command goes on" in run.output
    assert "status stopped (on request; the same command starts it again)" in status(shell, run)


UNSAVED = """
import time, jax, shardwise
shardwise.init()
for step in range(1, 100_000):
    time.sleep(0.02)
    shardwise.report(step=step)
    if step == 5:
        shardwise.checkpoint.save({"model": jax.numpy.ones(4)}, step)
    if shardwise.should_stop():
        break
"""


def test_a_stop_that_does_not_save(shell: ProgramShell) -> None:
    """A program that passes over should_save() is not said to have saved: only its newest checkpoint is."""
    run = begin(shell, "unsaved", UNSAVED)
    assert run.stop(step=6) == ExitCode.SAVED
    step = run.records()[-1]["step"]
    assert f"stopped after step {step}; the newest checkpoint is of step 5; the same command goes on" in run.output
    assert "status stopped (on request; the same command goes on from step 5)" in status(shell, run)


SOME = """
import time, shardwise
shardwise.init()
for step in range(1, 100_000):
    time.sleep(0.05)
    if step % 20 == 0:
        shardwise.report(step=step)
    if shardwise.should_stop():
        break
"""


def test_a_program_that_reports_each_twentieth_step(shell: ProgramShell) -> None:
    """What is shown as the time of a step is that of one, not of the twenty, which last a second at least."""
    run = begin(shell, "some", SOME)
    known = run.until_status(lambda status: bool(status["hosts"]) and status["hosts"][0]["step"] >= 60)
    assert 0.05 <= known["hosts"][0]["stepSeconds"] < 1.0
    assert run.send(signal.SIGTERM) == ExitCode.SAVED


@pytest.mark.long  # test_stop.py has the leader's part
def test_the_deadline(shell: ProgramShell) -> None:
    """A program that knows nothing of a deadline is stopped at it, and until then the run counts as running."""
    run = begin(shell, "deadline", WAITS, "deadline=25s")
    run.until_status(lambda status: status["phase"] == "running")
    assert run.wait() == ExitCode.SAVED
    assert (run.summary["status"], run.summary["restarts"]) == ("stopped", {})


def test_a_save_does_not_end_it(shell: ProgramShell) -> None:
    """It has no handler for the signal that asks the library to save, so it does not get it."""
    script = "import time\nwhile True:\n    print('still here', flush=True)\n    time.sleep(0.05)\n"
    run = begin(shell, "save", script)
    run.until(lambda: "still here" in log(run))
    ask(run.directory, "POST", "/save")
    run.until(lambda: bool(run.events("save")))
    written = len(log(run))
    run.until(lambda: len(log(run)) > 2 * written + 200 or bool(run.events("ended")))
    assert run.events("ended") == []
    assert run.send(signal.SIGTERM) == ExitCode.SAVED


NO_RECORDS = {
    "another": "file.write_text('{\"step\": 1}')",
    "binary": "file.write_bytes(bytes(range(256)))",
    "folder": "(file / 'within').mkdir(parents=True)",
    "huge": "file.touch(); os.truncate(file, 1 << 40)",
    "pipe": "os.mkfifo(file)",
    "endless": "file.symlink_to('/dev/zero')",
}


@pytest.mark.parametrize("what", all_but(["another"], NO_RECORDS))
def test_a_file_that_is_no_progress_record(shell: ProgramShell, what: str) -> None:
    """It counts as none, of this attempt and for the next one, and the program's log says so once."""
    script = (
        "import os, pathlib, time\n"
        "file, attempt = pathlib.Path(os.environ['SHARDWISE_PROGRESS']), os.environ['SHARDWISE_ATTEMPT']\n"
        "if attempt == '0':\n"
        f"    {NO_RECORDS[what]}\n"
        "log = pathlib.Path(os.environ['SHARDWISE_RUN_DIRECTORY'], 'logs', f'attempt-{attempt}', 'host-0.log')\n"
        "while attempt == '0' and 'counts as none' not in log.read_text():\n"
        "    time.sleep(0.05)\n"
        "raise SystemExit(attempt == '0')\n"
    )
    run = begin(shell, f"no-record-{what}", script)
    assert run.finish()["restarts"] == {"failure": 1}
    assert (log(run).count("counts as none"), log(run, 1)) == (1, "")
    assert "progress-0.json is no progress record, and counts as none: expected a file of" in log(run)


def test_what_it_leaves_behind_is_ended(shell: ProgramShell) -> None:
    """A child that a failed program has left in a session of its own does not live on into the next attempt."""
    script = (
        "import os, subprocess, sys\n"
        "if os.environ['SHARDWISE_ATTEMPT'] == '0':\n"
        "    child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True)\n"
        "    print(child.pid, flush=True)\n"
        "    sys.exit(1)\n"
        f"{WAITS}"
    )
    run = begin(shell, "leaves", script)
    run.until(lambda: "waits" in log(run, 1))
    child = int(log(run).splitlines()[0])
    assert child not in run.processes()
    assert run.send(signal.SIGTERM) == ExitCode.SAVED


LEAVES_UNMARKED = """
import os, subprocess, sys
if os.environ["SHARDWISE_ATTEMPT"] == "0":
    apart = {"env": {}, "start_new_session": True}
    waits = [sys.executable, "-c", "import time; print('left', flush=True); time.sleep(600)"]
    starts = [sys.executable, "-c", f"import subprocess; subprocess.Popen({waits}, **{apart}).wait()"]
    for command in (waits, starts):
        child = subprocess.Popen(command, **apart, stdout=subprocess.PIPE, text=True)
        assert child.stdout.readline().strip() == "left"
        print(child.pid, flush=True)
    print(*open(f"/proc/{child.pid}/task/{child.pid}/children").read().split(), flush=True)
    sys.exit(1)
"""


@pytest.mark.long  # one more way to find what the test above ends
def test_what_it_leaves_behind_in_another_environment_is_ended(shell: ProgramShell) -> None:
    """So is a child with nothing of the program's environment, and what that has started."""
    run = begin(shell, "leaves-unmarked", f"{LEAVES_UNMARKED}{WAITS}", "recovery.restarts.failure=1")
    run.until(lambda: "waits" in log(run, 1))
    left = [int(line) for line in log(run).splitlines()]
    assert len(left) == 3
    assert [pid for pid in left if psutil.pid_exists(pid)] == []
    assert run.send(signal.SIGTERM) == ExitCode.SAVED


def test_it_ends_with_its_agent(shell: ProgramShell) -> None:
    """The kernel ends it when its agent is killed, also while no one is there to replace the agent."""
    run = begin(shell, "with-agent", WAITS)
    run.until(lambda: "waits" in log(run))
    program: int = run.status()["hosts"][0]["trainerPid"]
    run.command.send_signal(signal.SIGSTOP)  # it would replace the agent
    try:
        os.kill(agent_of(program), signal.SIGKILL)
        run.until(lambda: program not in run.processes())
    finally:
        run.command.send_signal(signal.SIGCONT)
    run.until(lambda: "waits" in log(run, 1))
    assert run.send(signal.SIGTERM) == ExitCode.SAVED


def test_a_directory_of_another_run_is_refused(shell: ProgramShell) -> None:
    """The directory of one program is not taken for another one, nor for a job of the trainer."""
    begin(shell, "first", "print('done')").finish()
    other = begin(shell, "first", "print('done')", "metadata.name=other")
    assert other.wait() == ExitCode.BAD_INPUT
    assert "holds the run 'mine', and this job is 'other'" in other.output


def test_without_a_job_file(shell: ProgramShell, tmp_path: Path) -> None:
    """A command on so many hosts and devices needs no job file; status, logs, page and stop know the run."""
    (tmp_path / "my script.py").write_text(WAITS)
    arguments = [
        "run",
        "--hosts",
        "1",
        "--devices",
        "2",
        "--dir",
        "plain",
        "--",
        sys.executable,
        str(tmp_path / "my script.py"),
    ]
    run = shell.begin_command("plain", *COMMAND, *arguments)
    run.until(lambda: "waits" in log(run))

    status: dict[str, Any] = json.loads(shell.call("status", "plain", "--json").stdout)
    assert (status["name"], status["attempt"], len(status["hosts"])) == ("my-script", 0, 1)
    assert shell.call("logs", "plain").stdout == "waits\n"
    page = shell.call("page", "plain")
    assert page.returncode == 0, page.stderr
    assert "my-script" in (run.directory / "page.html").read_text()
    stopped: subprocess.CompletedProcess[str] = shell.call("stop", "plain")
    assert (stopped.returncode, run.wait()) == (0, ExitCode.SAVED)
    assert [path.name for path in (run.directory / "logs" / "attempt-0").iterdir()] == ["host-0.log"]
