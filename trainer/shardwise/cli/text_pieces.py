"""Text that is written as its tokens come: no character before it is whole, and nothing that may be a stop text."""

from collections.abc import Callable, Iterable, Iterator, Sequence

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_FEW = (4, 8, 16, 32)  # more where fewer would begin within a character


def pieces(tokens: Iterable[int], decode: Callable[[Sequence[int]], str]) -> Iterator[str]:
    """Yield the text of `tokens` piece by piece, each as soon as it is sure; together they are `decode` of all.

    A character of several tokens shows as replacement characters until its last token, one or one of each, so all of
    them at the end are held back. A token is decoded with the last few before it, from one whole character to another,
    since a decoder may treat the first token of a text otherwise than those that follow it.
    """
    window: list[int] = []
    written = whole = 0  # characters of the window's text that are written; tokens of it that ended with a character
    for token in tokens:
        window.append(token)
        text = decode(window)
        sure = text.rstrip(_REPLACEMENT)
        yield sure[written:]
        written = max(written, len(sure))  # an open character may hide whole ones before it, which are written
        if sure == text:
            # Tokens without text take no space off the next one: alone they are no beginning.
            if known := decode(window[whole:]) if whole else "":
                window, written = window[whole:], len(known)
            whole = len(window)
    yield decode(window)[written:]


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


class Held:
    """Text that goes out as far as it is sure to be before any stop text."""

    def __init__(self, stops: Sequence[str]) -> None:
        """Begin without text."""
        self._stops, self._text = stops, ""
        self.has_ended = False
        """Whether a stop text is there, which no other one can come before."""

    def take(self, piece: str) -> str:
        """Take more text, and return what goes out."""
        self._text += piece
        self.has_ended = has_ended(self._text, self._stops)
        if self.has_ended:
            return self.rest()
        sure = _sure(self._text, self._stops)
        out, self._text = self._text[:sure], self._text[sure:]
        return out

    def rest(self) -> str:
        """Return what goes out in the end; a stop text is the first then, whatever might have begun before it."""
        place = stop_place(self._text, self._stops)
        out, self._text = self._text[:place], ""
        self.has_ended = self.has_ended or place is not None
        return out


def before_stop(pieces: Iterable[str], stops: Sequence[str]) -> Iterator[str]:
    """Yield the text of `pieces` up to the first of the stop texts. What may be the beginning of one is held back."""
    held = Held(stops)
    for piece in pieces:
        yield held.take(piece)
        if held.has_ended:
            return
    yield held.rest()


def stop_place(text: str, stops: Sequence[str]) -> int | None:
    """Return where the first stop text begins that is whole in the text, or None."""
    return min((place for stop in stops if (place := text.find(stop)) >= 0), default=None)


def has_ended(text: str, stops: Sequence[str]) -> bool:
    """Return whether a text ends at a stop text, whatever follows: no other may have begun before that one."""
    place = stop_place(text, stops)
    return place is not None and place <= _sure(text, stops)


def _sure(text: str, stops: Sequence[str]) -> int:
    """Return how many characters are before the end that may be the beginning of a stop text."""
    return len(text) - max((_overlap(text, stop) for stop in stops), default=0)


def _overlap(text: str, stop: str) -> int:
    """Return how many characters at the end of the text are the beginning of the stop text."""
    return next((size for size in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:size])), 0)
