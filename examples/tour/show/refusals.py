"""What a call is refused with, for the tours that show what does not work."""

from collections.abc import Callable
from typing import Any


def refusal(function: Callable[..., Any], *args: Any) -> str:
    """The error that a call ends with, as "Class: text" on one line; "none" where it is not refused."""
    try:
        function(*args)
    except Exception as error:  # noqa: BLE001 # whatever it is refused with is what is shown
        return f"{type(error).__name__}: {' '.join(str(error).split())}"
    return "none"
