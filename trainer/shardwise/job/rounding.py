"""Whole parts of a number: everything that is cut up, or padded, is so by these two."""


def num_parts(total: int, size: int) -> int:
    """Return how many parts of `size` hold `total`; the last one may have room left."""
    return -(-total // size)


def padded(number: int, multiple: int) -> int:
    """Return the least multiple of `multiple` that is not below `number`."""
    return num_parts(number, multiple) * multiple
