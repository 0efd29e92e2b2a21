"""The layouts of a search for people, in the terminal, and why the best is best."""

from collections.abc import Callable, Iterator, Sequence

from rich.console import Console

from shardwise.plan.result import Bound
from shardwise.plan.search import Found
from shardwise.plan.show import table_of
from shardwise.protocol.text import GIB


def show_search(found: Sequence[Found], console: Console) -> None:
    """Print the candidates of a search, best first, and why the best is best."""
    columns = ("layout", "fits", "GiB", "least step", "MFU at most", "binds")
    table = table_of("Layouts, best first", columns, left=("layout", "fits", "binds"))
    for one in found:
        bound = one.plan.bound
        table.add_row(
            one.choice.words + (" (the job's own)" if one.is_own else ""),
            "yes" if one.plan.fits else "no",
            f"{one.plan.needed_bytes / GIB:,.1f}",
            f"{bound.seconds * 1000:,.0f} ms" if bound else "",
            f"{bound.mfu:.1%}" if bound else "",
            bound.binds if bound else "",
        )
    console.print(table)
    console.print(why(found))


def why(found: Sequence[Found]) -> str:
    """Return why the best layout of a search is best, beside the job's own."""
    best, own = found[0], next(one for one in found if one.is_own)
    if not best.plan.fits:
        return f"None of them fits; {best.choice.words} needs the least memory."
    if best.is_own or best.plan.bound is None:
        return "The job's own layout is the best of them."
    if not own.plan.fits:
        return f"The job does not fit as it is; {best.choice.words} does."
    assert own.plan.bound is not None, "it was compiled, as the best was"
    gains = " and ".join(_gains(best.plan.bound, own.plan.bound))
    share = 1 - best.plan.bound.seconds / own.plan.bound.seconds
    by = f", by {gains}" if gains else ""
    return f"{best.choice.words}: the least step is {share:.0%} shorter than the job's own{by}."


def _gains(best: Bound, own: Bound) -> Iterator[str]:
    terms: dict[str, Callable[[Bound], float]] = {
        "arithmetic": lambda bound: bound.compute_seconds,
        "reading and writing of memory": lambda bound: bound.memory_seconds,
        "waiting for other devices": lambda bound: sum(bound.synchronous_seconds.values()),
        "that moves beside it": lambda bound: sum(bound.asynchronous_seconds.values()),
    }
    for name, seconds in terms.items():
        if seconds(best) < seconds(own) * 0.99:
            yield f"less {name} ({seconds(best) * 1000:,.0f} for {seconds(own) * 1000:,.0f} ms)"
