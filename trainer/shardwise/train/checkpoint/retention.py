"""Which checkpoints may go. Pure: the writer deletes what this names, after each commit."""

from collections.abc import Collection

from shardwise.job.spec import Keep


def expired(committed: Collection[int], saved: int, keep: Keep) -> list[int]:
    """Return the steps to delete, oldest first, given all committed steps and the one that was just `saved`.

    Kept are the `keep.last` newest, the multiples of `keep.every_steps`, and always `saved`: it is the one
    that is known to be good, even if a damaged one of a later step lies beside it.
    """
    newest = sorted(committed)[-keep.last :]
    permanent = [step for step in committed if keep.every_steps and step % keep.every_steps == 0]
    return sorted(set(committed) - {saved, *newest, *permanent})
