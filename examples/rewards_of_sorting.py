"""Rewards for `examples/rewards.yaml`: a model learns to sort letters, though nobody shows it a sorted word.

    python examples/rewards_of_sorting.py prompts > prompts.jsonl
    shardwise run examples/rewards.yaml

The run starts this program once on each host. It gets a line of JSON for each completion, and answers with a number.
"""

import itertools
import json
import sys
from collections.abc import Iterator

LETTERS, LENGTH = "abcde", 3


def prompts() -> Iterator[str]:
    """Yield the lines to learn from; the run hands each to the rewards as it is, with the completion beside."""
    for word in itertools.permutations(LETTERS, LENGTH):
        yield json.dumps({"prompt": f"{''.join(word)}>", "answer": "".join(sorted(word))})


def reward(answer: str, completion: str) -> float:
    """Return the share of places with the right letter; half as much for each letter that is anywhere in the answer."""
    right = sum(one == other for one, other in zip(answer, completion, strict=False))
    known = sum(letter in completion for letter in answer)
    return (2 * right + known) / (3 * LENGTH) - 0.1 * (len(completion) != LENGTH)


def main() -> None:
    """Print the prompts, or answer lines until there are no more."""
    if sys.argv[1:] == ["prompts"]:
        print(*prompts(), sep="\n")
        return
    for given in sys.stdin:
        line = json.loads(given)
        print(reward(line["answer"], line["completion"]), flush=True)


if __name__ == "__main__":
    main()
