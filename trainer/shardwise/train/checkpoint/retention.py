"""Which checkpoints are deleted after a commit, and which stop counting because the run went back to an earlier one."""

from collections.abc import Callable, Collection
from functools import partial

from shardwise.job.spec import Keep
from shardwise.protocol.contract import checkpoint_name
from shardwise.protocol.errors import CheckpointError
from shardwise.protocol.storage import first_line, in_words, with_retries
from shardwise.train.checkpoint.store import Store


def expired(committed: Collection[int], saved: int, keep: Keep, origin: int | None = None) -> list[int]:
    """Return the steps to delete, oldest first, given all committed steps and the one that was just `saved`.

    Kept are the `keep.last` newest, the multiples of `keep.every_steps`, the `origin`, which is imported weights, and
    always `saved`: it is the one that is known to be good, even if a damaged one of a later step lies beside it.
    """
    newest = sorted(committed)[-keep.last :]
    permanent = [step for step in committed if keep.every_steps and step % keep.every_steps == 0]
    return sorted(set(committed) - {saved, origin, *newest, *permanent})


def retain(store: Store, saved: int, keep: Keep, origin: int | None, moved: Callable[[], None]) -> str:
    """Delete what `expired` lets go and what interrupted saves left; return why something stayed, or "".

    The next call deletes what stays. What was set aside stays until the run has come so far again. `moved` is called
    as the deletion gets on: that of one large checkpoint may take longer than a hang.
    """
    kept = []
    try:
        steps = store.steps()
        not_committed = [step for step, committed in steps.items() if not committed]
        cut_short = [step for step in not_committed if step <= saved or not store.is_set_aside(step)]
        committed = [step for step, is_committed in steps.items() if is_committed]
        for step in [*cut_short, *expired(committed, saved, keep, origin)]:
            try:
                store.delete(step, moved)
            except (ValueError, OSError) as error:
                kept.append(f"{checkpoint_name(step)}: {first_line(error)}")
    except (ValueError, OSError) as error:
        kept.append(first_line(error))
    return "; ".join(kept)


def set_aside(root: str, after: int) -> list[int]:
    """Set the committed checkpoints after a step aside, so that the run that goes on from it no longer has them.

    Return their steps, ascending. Raise `StorageError` or `CheckpointError`; then some may still count.
    """
    store = Store(root)
    try:
        later = [step for step, committed in with_retries(store.steps).items() if committed and step > after]
        for step in later:
            with_retries(partial(store.set_aside, step))
    except (ValueError, OSError) as error:
        raise in_words(error, f"{root}: {first_line(error)}", CheckpointError) from error
    return later
