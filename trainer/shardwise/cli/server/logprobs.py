"""How likely the tokens of a completion are, in the form of OpenAI's API."""

from functools import cache
from itertools import accumulate
from typing import Any

from shardwise.cli.server.texts import Text
from shardwise.train.scoring import Scores


def logprobs_of(text: Text, scores: Scores, count: int, *, with_prompt: bool) -> dict[str, Any]:
    """Return the logarithm of each token's probability, and so many of the likeliest in its place.

    The tokens are those that were made, with the one that ended the text, and with its prompt those before. The first
    of a prompt follows nothing, and so has none. A token is named by its text, the likeliest of those with one name.

    Args:
        text: which is over.
        scores: of all of its tokens but the first.
        count: of the likeliest; with 0 there are none, else the token itself is among them too.
        with_prompt: whether the prompt's tokens come first.

    """
    name = cache(lambda token: text.decode([token]))
    first = 0 if with_prompt else len(text.prompt)
    names = [name(token) for token in text.sequence[first:]]
    own: list[float | None] = [None, *scores.own.tolist()]
    likeliest: list[dict[str, float] | None] = [None]
    rows = zip(scores.top_tokens[:, :count].tolist(), scores.top[:, :count].tolist(), strict=True)
    for (tokens, logs), token, log in zip(rows, text.sequence[1:], scores.own.tolist(), strict=True):
        named: dict[str, float] = {}
        for each, of_it in zip([*tokens, token], [*logs, log], strict=True):
            named.setdefault(name(each), of_it)
        likeliest.append(named)
    return {
        "tokens": names,
        "token_logprobs": own[first:],
        "top_logprobs": likeliest[first:] if count else None,
        "text_offset": [0, *accumulate(len(each) for each in names)][:-1],
    }
