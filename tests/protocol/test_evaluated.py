"""shardwise.protocol.evaluated: the results of an evaluation, to and from their record."""

from shardwise.protocol.evaluated import as_record, by_name, results, rewarded

HELD_OUT = {"loss": 2.0, "accuracy": 0.5, "tokens": 100.0}
PROMPTS = {"reward": 0.25, "prompts": 8.0, "completionTokens": 3.0, "cutCompletions": 0.5}
BOOKS = {"loss": 3.0, "accuracy": 0.25, "tokens": 10.0}


def test_a_record_gives_back_its_results() -> None:
    """Held-out documents have keys of their own, as before there were sets; a job may have either without the other."""
    for found in ({"heldOut": HELD_OUT, "books": BOOKS}, {"heldOut": HELD_OUT}, {"books": BOOKS}):
        assert results(as_record(found)) == found
    assert as_record({"heldOut": HELD_OUT}) == {"heldOutLoss": 2.0, "heldOutAccuracy": 0.5, "tokens": 100.0}
    for found in ({"heldOut": PROMPTS, "books": BOOKS}, {"heldOut": PROMPTS}):
        assert as_record(found) == {"sets": found}
        assert results(as_record(found)) == found
    assert results({"heldOutLoss": None}) == {"heldOut": {"loss": None, "accuracy": None, "tokens": None}}


def test_names_of_curves() -> None:
    """Those of the held-out documents are what they were; a set's are grouped by its name."""
    assert by_name(as_record({"heldOut": HELD_OUT, "books": BOOKS})) == {
        "heldOutLoss": 2.0,
        "heldOutAccuracy": 0.5,
        "books/loss": 3.0,
        "books/accuracy": 0.25,
    }
    assert by_name(as_record({"heldOut": PROMPTS, "sums": PROMPTS})) == {"heldOutReward": 0.25, "sums/reward": 0.25}


def test_rewards_are_of_prompts_alone() -> None:
    """Each with the number of prompts that it is the mean of."""
    assert rewarded({"heldOut": PROMPTS, "books": BOOKS}) == {"heldOut": (0.25, 8)}
