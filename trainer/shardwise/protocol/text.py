"""Phrases that messages share: lists of what would work, the closest known word, bytes for people, odd names."""

import difflib
from collections.abc import Iterable

GIB, MIB = 1 << 30, 1 << 20
_MOST_LISTED = 12


def any_of(options: Iterable[object]) -> str:
    """Return the options as a list, cut if it is long."""
    words = [str(option) for option in options]
    listed = ", ".join(words[:_MOST_LISTED])
    return f"{listed}, ..." if len(words) > _MOST_LISTED else listed


def close_to(word: str, known: Iterable[str]) -> str:
    """Return `did you mean "..."?` if a known name resembles `word`, or else ""."""
    by_letters = {name.replace("_", "").replace("-", "").lower(): name for name in known}
    letters = word.replace("_", "").replace("-", "").lower()
    matches = difflib.get_close_matches(letters, by_letters, n=1, cutoff=0.6)
    return f'did you mean "{by_letters[matches[0]]}"?' if matches else ""


def size(number: float, digits: int = 1) -> str:
    """Return bytes for people: GiB from a tenth of one on, else MiB."""
    return f"{number / GIB:,.{digits}f} GiB" if number >= GIB / 10 else f"{number / MIB:,.{digits}f} MiB"


def writable(text: str) -> str:
    r"""Return a text that UTF-8 can write: a byte that is none, or half of a surrogate pair, becomes `\udce9`."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
