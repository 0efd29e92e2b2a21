"""shardwise.client.untold: each line of a log is told once, however often the log is read."""

from shardwise.client.untold import Untold


def at(second: int, line: str) -> str:
    """Return a line as the API server sends it."""
    return f"2026-01-01T00:00:{second:02}.000000001Z {line}\n"


def test_lines_of_one_moment() -> None:
    """A line that has the time of the last one is told, and told once; an empty one too."""
    untold, lines = Untold(), [at(0, "a"), at(1, "b"), at(1, "b"), at(1, "")]
    assert [*untold.of(lines[:2])] == ["a\n", "b\n"]
    assert [*untold.of(lines)] == ["b\n", "\n"]
    assert not [*untold.of(lines)]


def test_a_clock_that_is_set_back() -> None:
    """What a node writes after its clock was set back is told where it is followed, and not told again."""
    untold, lines = Untold(), [at(9, "a"), at(3, "b"), at(4, "c")]
    assert [*untold.of(lines)] == ["a\n", "b\n", "c\n"]
    assert not [*untold.of(lines)]


def test_what_a_node_says() -> None:
    """Words of its own in place of a log have no time; said again and again, they are told once."""
    untold = Untold()
    words = "unable to retrieve container logs for containerd://x\n"
    assert [*untold.of([words]), *untold.of([words]), *untold.of([at(1, "a")])] == [words, "a\n"]
