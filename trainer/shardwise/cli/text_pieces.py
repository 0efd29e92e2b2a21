"""Text that is written as its tokens come: no character before it is whole, and nothing that may be a stop text."""

from collections.abc import Callable, Iterable, Iterator, Sequence

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_FEW = (4, 8, 16, 32)  # more where fewer would begin within a character


def pieces(tokens: Iterable[int], decode: Callable[[Sequence[int]], str]) -> Iterator[str]:
    """Yield the text of `tokens` piece by piece, each as soon as it is sure; together they are `decode` of all.

    A character of several tokens shows as replacement characters until its last token, one or one of each, so all of
    them at the end are held back.
    """
    seen: list[int] = []
    written = 0
    for token in tokens:
        seen.append(token)
        sure = decode(seen).rstrip(_REPLACEMENT)
        yield sure[written:]
        written = max(written, len(sure))  # an open character may hide whole ones before it, which are written
    yield decode(seen)[written:]


def decoder_after(before: Sequence[int], decode: Callable[[Sequence[int]], str]) -> Callable[[Sequence[int]], str]:
    """Return what decodes tokens as the text that follows the tokens `before`.

    Some decoders take the space off the first word of a text, so the last few tokens before are decoded too, and their
    text is cut off.
    """
    few = next((before[-size:] for size in _FEW if _REPLACEMENT not in decode(before[-size:])), before)
    known = decode(few)

    def after(tokens: Sequence[int]) -> str:
        text = decode([*few, *tokens])
        return text[len(known) :] if text.startswith(known) else decode(tokens)

    return after


def before_stop(pieces: Iterable[str], stops: Sequence[str]) -> Iterator[str]:
    """Yield the text of `pieces` up to the first of the stop texts. What may be the beginning of one is held back."""
    held = ""
    for piece in pieces:
        held += piece
        found = [place for stop in stops if (place := held.find(stop)) >= 0]
        if found:
            yield held[: min(found)]
            return
        kept = max((_overlap(held, stop) for stop in stops), default=0)
        yield held[: len(held) - kept]
        held = held[len(held) - kept :]
    yield held


def _overlap(text: str, stop: str) -> int:
    """Return how many characters at the end of the text are the beginning of the stop text."""
    return next((size for size in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:size])), 0)
