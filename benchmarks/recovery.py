"""From a `kill -9` to the next completed step, beside starting everything anew, on two simulated hosts; and a hang.

Called by `benchmarks.main`. The clock is outside: it starts at the kill (or at the command) and stops when the next
step's line stands in metrics.jsonl. What a new trainer cannot do without is measured in the same round: a bare process
with the trainer's imports, and joining, restoring, loading the programs and one step as the run itself counted them.
"""

import json
import os
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.machine import Pythons
from benchmarks.sizes import TINY
from benchmarks.turns import ROOT, Spread, WorkerError

WITHIN_SECONDS = 300
HOSTS, DEVICES = 2, 4
STEPS = 100_000  # more than any round gets to
EVERYTHING, BARE, TRAINER = "everything, by the same command", "what is unavoidable", "a trainer"
VICTIMS: Mapping[str, tuple[int, str]] = {
    TRAINER: (1, "trainerPid"),
    "the agent of host 1": (1, "agentPid"),
    "the agent of host 0": (0, "agentPid"),
}
UNAVOIDABLE = ("join", "restore", "compile")
HANG_AFTER_SECONDS = 20
SAID, ALLOWED, ENDED = "said", "allowed", "ended"
Report = Callable[[str], None]


def measure(pythons: Pythons, *, rounds: int, deadline: float, report: Report) -> dict[str, Any]:
    """Measure round after round, as many as are asked for or as the deadline leaves time for.

    Returns:
        "rounds"; "seconds", by what was killed, with their "ratio" and "gain"; "phases" of a lost trainer; and "hang",
        SAID, ALLOWED and ENDED of one that stands still.

    """
    seconds: list[dict[str, float]] = []
    phases: list[dict[str, float]] = []
    hangs: list[dict[str, float]] = []
    longest = 0.0
    with tempfile.TemporaryDirectory(prefix="shardwise-bench-") as folder:
        bench = _Bench(pythons, Path(folder))
        report("recovery: the first start fills the cache")
        with bench.run("first"):
            bench.until_step("first", 1)
        while len(seconds) < rounds and (not seconds or time.monotonic() + longest < deadline):
            began = time.monotonic()
            report(f"recovery: round {len(seconds) + 1}")
            of_round, in_phases, hang = bench.round(f"round-{len(seconds)}")
            seconds.append(of_round)
            phases.append(in_phases)
            hangs.append(hang)
            longest = max(longest, time.monotonic() - began)
    return {
        "rounds": len(seconds),
        "seconds": {what: asdict(Spread.of([one[what] for one in seconds])) for what in seconds[0]},
        "ratio": {
            what: asdict(Spread.of([one[what] / one[BARE] for one in seconds])) for what in seconds[0] if what != BARE
        },
        "gain": asdict(Spread.of([one[EVERYTHING] / one[TRAINER] for one in seconds])),
        "phases": {phase: asdict(Spread.of([one[phase] for one in phases])) for phase in phases[0]},
        "hang": {what: asdict(Spread.of([one[what] for one in hangs])) for what in hangs[0]},
    }


class _Bench:
    """Runs of one job that share a cache."""

    def __init__(self, pythons: Pythons, folder: Path) -> None:
        self._python, self._folder = pythons.own, folder
        self._environment = {**os.environ, "SHARDWISE_CACHE": str(folder / "cache")}
        (folder / "job.yaml").write_text(_JOB, encoding="utf-8")

    def round(self, name: str) -> tuple[dict[str, float], dict[str, float], dict[str, float]]:
        """One run: everything is killed and started again, then each victim in turn, and a trainer stands still."""
        with self.run(name) as command:
            self.until_step(name, 6)
            self._kill_all(name, command)
        began = time.perf_counter()
        seconds: dict[str, float] = {}
        with self.run(name):
            done = self._last_step(name)
            self.until_step(name, done + 1)
            seconds[EVERYTHING] = time.perf_counter() - began
            for what, (host, key) in VICTIMS.items():
                self._until_ready(name)
                status = self._status(name)
                size = (self._folder / name / "metrics.jsonl").stat().st_size
                killed = time.perf_counter()
                os.kill(status["hosts"][host][key], signal.SIGKILL)
                while not self._stepped_again(name, size):
                    self._rest(killed)
                seconds[what] = time.perf_counter() - killed
                if what == TRAINER:
                    phases = self._phases(name)
            hang = self._hang(name)
        bare = self._bare()
        phases = {"bare process": bare, **phases}
        seconds[BARE] = bare + sum(phases[phase] for phase in (*UNAVOIDABLE, "step"))
        return seconds, phases, hang

    def _hang(self, name: str) -> dict[str, float]:
        """Seconds from a SIGSTOP until the trainer is said to stand still, what may pass until then, and its end."""
        self._until_ready(name)
        usual = statistics.median(record["stepSeconds"] for record in self._steps(name)[-10:])
        stalls, ends = (self._events(name, event) for event in ("stalled", "ended"))
        victim = self._status(name)["hosts"][1]["trainerPid"]
        stopped = time.perf_counter()
        os.kill(victim, signal.SIGSTOP)
        seconds = {ALLOWED: 3 * usual + 5}
        for what, event, before in ((SAID, "stalled", stalls), (ENDED, "ended", ends)):
            while self._events(name, event) == before:
                self._rest(stopped)
            seconds[what] = time.perf_counter() - stopped
        return seconds

    @contextmanager
    def run(self, name: str) -> Iterator["subprocess.Popen[bytes]"]:
        """`shardwise run` in the directory `name`, stopped at the end of the block if it still runs."""
        command = [self._python, "-m", "shardwise.cli.app", "run", "job.yaml", "--dir", name]
        with (
            (self._folder / f"{name}.log").open("ab") as log,
            subprocess.Popen(command, cwd=self._folder, env=self._environment, stdout=log, stderr=log) as process,
        ):
            self._process, self._name = process, name
            try:
                yield process
            finally:
                if process.poll() is None:
                    process.send_signal(signal.SIGTERM)
                    process.wait(WITHIN_SECONDS)

    def until_step(self, name: str, step: int) -> None:
        """Wait until so many steps are complete."""
        began = time.perf_counter()
        while self._last_step(name) < step:
            self._rest(began)

    def _rest(self, began: float) -> None:
        if self._process.poll() is not None or time.perf_counter() > began + WITHIN_SECONDS:
            said = (self._folder / f"{self._name}.log").read_text(errors="replace")[-4000:]
            raise WorkerError(f"the run of the recovery benchmark did not go on:\n{said}")
        time.sleep(0.02)  # seldom enough not to take the time that is measured

    def _records(self, name: str, start: int = 0) -> list[dict[str, Any]]:
        path = self._folder / name / "metrics.jsonl"
        if not path.exists():
            return []
        with path.open("rb") as file:
            file.seek(start)
            lines = file.read().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith(b"\n")]

    def _steps(self, name: str) -> list[dict[str, Any]]:
        return [record for record in self._records(name) if "event" not in record]

    def _events(self, name: str, event: str) -> int:
        """How often the launcher has told this."""
        lines = (self._folder / name / "logs" / "launcher.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
        return sum(json.loads(line)["event"] == event for line in lines if line.endswith("\n"))

    def _last_step(self, name: str) -> int:
        """The last step since the newest start; 0 where that has made none."""
        step = 0
        for record in self._records(name):
            step = record["step"] if "event" not in record or record["event"] == "restored" else step
        return step

    def _stepped_again(self, name: str, size: int) -> bool:
        """Whether a step has followed a restore since the file had this size. It reads no more than that."""
        restored = False
        for record in self._records(name, size):
            if restored and "event" not in record:
                return True
            restored = restored or record.get("event") == "restored"
        return False

    def _status(self, name: str) -> dict[str, Any]:
        command = [self._python, "-m", "shardwise.cli.app", "status", name, "--json"]
        output = subprocess.run(command, cwd=self._folder, env=self._environment, capture_output=True, check=True)
        status: dict[str, Any] = json.loads(output.stdout)
        return status

    def _until_ready(self, name: str) -> None:
        """Wait until every host has a trainer in reserve, and for steps enough that its imports are done."""
        self.until_step(name, self._last_step(name) + 10)
        began = time.perf_counter()
        while True:
            status = self._status(name)
            hosts = status["hosts"]
            if len(hosts) == HOSTS and all(host["standby"] and host["step"] for host in hosts):
                return
            self._rest(began)

    def _phases(self, name: str) -> dict[str, float]:
        """What the newest attempt's rank 0 has counted, and its first step."""
        seconds = self._status(name)["hosts"][0]["phases"]
        first = next(record for record in reversed(self._records(name)) if record.get("event") == "restored")
        records = self._records(name)
        step = records[records.index(first) + 1]["stepSeconds"]
        return {**{phase: seconds.get(phase, 0.0) for phase in (*UNAVOIDABLE, "data")}, "step": step}

    def _kill_all(self, name: str, command: "subprocess.Popen[bytes]") -> None:
        """As a machine that loses power would, but for the page cache."""
        status = self._status(name)
        command.kill()
        for host in status["hosts"]:
            for key in ("agentPid", "trainerPid"):
                os.kill(host[key], signal.SIGKILL)
        command.wait(WITHIN_SECONDS)

    def _bare(self) -> float:
        """A process that imports what a trainer imports, and ends."""
        environment = {**self._environment, "JAX_PLATFORMS": "cpu"}
        began = time.perf_counter()
        subprocess.run([self._python, "-c", "import shardwise.train.main"], env=environment, check=True)
        return time.perf_counter() - began


_JOB = f"""apiVersion: shardwise.dev/v1alpha1
kind: TrainingJob
metadata: {{name: recovery}}
spec:
  hardware: {{accelerator: cpu-sim, topology: {HOSTS}x{DEVICES}}}
  recovery: {{restarts: {{failure: 1000}}, hangAfter: {HANG_AFTER_SECONDS}s}}
  training:
    model:
      layers: {TINY.layers}
      heads: {TINY.heads}
      embed: {TINY.embed}
      seqLen: {TINY.seq_len}
      vocabSize: {TINY.vocab}
    data: {{train: [{{name: text, paths: ["{ROOT / "LICENSE"}"]}}], tokenizer: byte}}
    mesh: {{tensor: 2}}
    batch: {{sequences: {TINY.sequences}}}
    optimizer: {{name: adamw, learningRate: 3e-4}}
    steps: {STEPS}
    checkpoint: {{everySteps: 5}}
"""
