"""How a message names pods or hosts of which there may be thousands: the first few, and how many there are."""

from collections.abc import Collection
from itertools import islice

MOST_NAMED = 4


def first_few(names: Collection[str]) -> str:
    """Return the first few names in a row, with dots if there are more."""
    return ", ".join(islice(names, MOST_NAMED)) + ", ..." * (len(names) > MOST_NAMED)


def counted(names: Collection[str]) -> str:
    """Return the same with their number, if not all are named."""
    return first_few(names) + (f" ({len(names)} in all)" if len(names) > MOST_NAMED else "")
