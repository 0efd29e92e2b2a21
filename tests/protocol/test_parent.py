"""shardwise.protocol.parent: what is started by it ends with this process, and is otherwise as if started plainly."""

import signal
import subprocess
import sys
import threading

import pytest

from shardwise.protocol.parent import start_ending_with_this


def test_who_has_lost_the_parent_before_ends_at_once() -> None:
    """The kernel tells of no end that was before it was asked."""
    code = "from shardwise.protocol.parent import end_with; end_with(0); print('goes on')"
    ended = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, timeout=60)
    assert (ended.returncode, ended.stdout) == (-signal.SIGKILL, b"")


def test_a_command_ignores_no_signal() -> None:
    """What Python ignores, and who writes to a closed pipe counts on, is heeded by what takes its place."""
    with start_ending_with_this(["grep", "SigIgn", "/proc/self/status"], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        said = process.stdout.read()
    ignored = int(said.split()[1], 16)
    assert not ignored & (1 << signal.SIGPIPE - 1 | 1 << signal.SIGXFSZ - 1)


def test_a_command_has_no_more_open_files_than_its_own() -> None:
    """By the pipe that tells whether it was executed it would keep this process waiting."""
    with start_ending_with_this(["ls", "/proc/self/fd"], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.read().split() == [b"0", b"1", b"2", b"3"]  # the last is of the folder that ls reads
    assert process.returncode == 0


@pytest.mark.parametrize(("command", "error"), [("/none/such", FileNotFoundError), ("/etc", PermissionError)])
def test_what_cannot_be_executed_is_refused(command: str, error: type[OSError]) -> None:
    """The error is the kernel's, as by `Popen`."""
    with pytest.raises(error):
        start_ending_with_this([command])


def test_another_thread_than_the_main_one_is_refused() -> None:
    """The kernel would end the command with that thread."""
    refused: list[AssertionError] = []

    def start() -> None:
        with pytest.raises(AssertionError) as found:
            start_ending_with_this(["true"])
        refused.append(found.value)

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    assert "the thread that starts it" in str(refused[0])
