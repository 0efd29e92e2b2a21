"""The name of a host in a job's status, on its pods and in policies: "<slice>-<host>", both from 0."""

LEADER = "0-0"


def host_name(slice_: int | str, of_slice: int | str) -> str:
    """Return the name of a host, from its slice and its number there."""
    return f"{slice_}-{of_slice}"


def numbers_of(host: str) -> tuple[int, int]:
    """Return the slice of a host and its number there."""
    slice_, of_slice = host.split("-")
    return int(slice_), int(of_slice)


def is_first(host: str) -> bool:
    """Return whether a host is the first of its slice, which the others follow to its place."""
    return numbers_of(host)[1] == 0
