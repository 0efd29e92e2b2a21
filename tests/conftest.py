"""What every test stands on: eight simulated devices, repeatable generated examples, golden files.

pytest reads it before any test imports JAX. A test that asks for the fixture `golden` is marked `golden`, so that
`make golden` runs those alone.
"""

import gc
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

pytest_plugins = ["tests.cluster.fixtures", "tests.page.browser", "tests.passed"]

# Hundreds of processes are started, and reading JAX's sources anew would be half of what most of them do.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
os.environ["JAX_PLATFORMS"] = "cpu"
# The last two leave out more than those of trainers of several simulated hosts (`shardwise.train.state`): most of the
# time goes into the compiler. What rests on all of XLA asks for that (`tests.train.conftest.IN_FULL`).
os.environ["XLA_FLAGS"] = (
    "--xla_force_host_platform_device_count=8 --xla_cpu_collective_call_terminate_timeout_seconds=1800"
    " --xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"
)
os.environ["NPROC"] = "32"  # threads for the collectives of eight devices: see shardwise.job.environment
# What the compiler made is kept by content, outside of the checkout, and shared with the commands that tests start.
# Without the folder everything is compiled again.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path("~/.cache/shardwise/test-executables").expanduser()))
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"

# Traced programs are many small objects that stay: to collect as often as Python does takes a twentieth of the time.
gc.set_threshold(50_000, 20, 100)

# What comes from there must not stand still: see shardwise.train.kept_order. (JAX reads the variables above.)
from shardwise.train.jax_private import load_in_order  # noqa: E402

load_in_order()

# A failure must come back on the next run, and a slow machine must not be one.
settings.register_profile("repeatable", derandomize=True, deadline=None, database=None)
# For a person who looks for more: other examples each time, and many; a failure prints how to have it again.
settings.register_profile("thorough", deadline=None, database=None, max_examples=1000, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))

Golden = Callable[[str, str], None]

# The files that share an API server go to one process of pytest: each process that has such a file starts a server.
_SHARING = (
    ("tests/operator/api/",),
    (
        "tests/operator/controller/",
        "tests/operator/observe/test_nodes.py",
        "tests/operator/runtime/",
        "tests/cluster/test_api_server",
        "tests/charts/test_rights",
        "tests/client/",
    ),
)


# Runs of several hosts, in pods or as processes. They need all processors, where most others wait for something.
_MANY_HOSTS = ("tests/hosts/", "tests/images/", "tests/kubernetes/")

# A minute or more for each test, and nothing shared: as one piece they would be left to one process at the end.
_EACH_BY_ITSELF = ("tests/train/test_meshes.py", "tests/plan/test_resident.py")

# One test of six minutes, each command of the documents behind the other: begun last, the others would end before it.
_AT_FIRST = ("tests/test_commands_run.py",)


class _Scheduling(LoadFileScheduling):  # type: ignore[misc]  # xdist ships no types
    """Files go to whichever process of pytest is free: every second one begins with the runs of several hosts."""

    def _assign_work_unit(self, node: WorkerController) -> None:
        many_hosts = bool(self.nodes.index(node) % 2)

        def place(scope: str) -> tuple[bool, bool]:
            return scope.startswith(_MANY_HOSTS) != many_hosts, not scope.startswith(_AT_FIRST)

        self.workqueue.move_to_end(min(self.workqueue, key=place), last=False)
        super()._assign_work_unit(node)

    def _split_scope(self, nodeid: str) -> str:
        if nodeid.startswith(_EACH_BY_ITSELF):
            return nodeid
        shared = next((paths for paths in _SHARING if nodeid.startswith(paths)), None)
        return " ".join(shared) if shared else str(super()._split_scope(nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling | None:
    """Distribute files as `--dist loadfile` does, but for those that share an API server and those of many hosts."""
    return _Scheduling(config, log) if config.getoption("dist") == "loadfile" else None


class _AtOnce:
    """Print a failure when it happens: a run that is ended from outside would keep it for itself."""

    def __init__(self, terminal: pytest.TerminalReporter) -> None:
        self._terminal = terminal
        self._start = time.monotonic()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            minutes = (time.monotonic() - self._start) / 60
            self._terminal.ensure_newline()
            self._terminal.section(f"{report.nodeid} failed after {minutes:.1f} minutes", sep="-", red=True)
            self._terminal.line(report.longreprtext)


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Let the process that prints the results print failures at once."""
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if terminal is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_AtOnce(terminal), "at-once")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that compare with a golden file."""
    for item in items:
        if isinstance(item, pytest.Function) and "golden" in item.fixturenames:
            item.add_marker("golden")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """Return a function of (name, text) that compares text with the file `golden/<name>` beside the test.

    With UPDATE_GOLDEN=1 in the environment it writes the file instead; the diff is the reviewer's to read.
    """
    folder = request.path.parent / "golden"

    def check(name: str, text: str) -> None:
        path = folder / name
        if os.environ.get("UPDATE_GOLDEN") == "1":
            folder.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert text == _read(path)

    return check


def _read(path: Path) -> str:
    assert path.exists(), f"{path} does not exist: make it with `make golden`"
    return path.read_text(encoding="utf-8")
