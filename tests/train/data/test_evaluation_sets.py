"""Sets that are evaluated on: each target once, in an order that nothing changes, and no set without one."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardwise.job.spec.data import Data, EvaluationSet
from shardwise.protocol.errors import DataError
from shardwise.train.data.evaluation_sets import Evaluated, open_held_out, open_sets
from shardwise.train.data.opening import Watch
from shardwise.train.data.store_builder import build

SEQ_LEN = 16
END = 256


def write(path: Path, texts: list[str]) -> str:
    """Write texts as lines of JSON, and give the path."""
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return str(path)


def data_of(path: str, held_out: float = 0.0, across: str = "document") -> Data:
    """A data section with this one source."""
    return Data.model_validate(
        {"train": [{"name": "train", "paths": [path]}], "heldOut": held_out, "attendAcross": across}
    )


def opened(tmp_path: Path, *texts: list[str], across: str = "document") -> list[Evaluated]:
    """Each list of texts as a set; the first one says how many batches of it are evaluated."""
    sets = [
        EvaluationSet(
            name=f"set{number}", paths=(write(tmp_path / f"{number}.jsonl", one),), batches=None if number else 3
        )
        for number, one in enumerate(texts)
    ]
    data = data_of(write(tmp_path / "train.jsonl", ["unused"]), across=across)
    cache = tmp_path / "cache"
    return open_sets(sets, data, seq_len=SEQ_LEN, cache_root=cache, watch=Watch(), most=2)


def counted(one: Evaluated) -> list[int]:
    """All targets of a set that count, sorted."""
    batch = one.sequences.rows(np.arange(one.sequences.num_sequences + 5))
    return sorted(batch.targets[batch.weights > 0].tolist())


@pytest.mark.parametrize("across", ["document", "stream"])
def test_every_target_counts_once(tmp_path: Path, across: str) -> None:
    """To the last token, also where what is left at the end is shorter than a sequence; rows past the last count 0."""
    texts = [f"{number} green bottles"[: number + 2] for number in range(15)]
    (one,) = opened(tmp_path, texts, across=across)
    documents = [[*text.encode(), END] for text in texts]
    stream = [token for document in documents for token in document]
    expected = stream[1:] if across == "stream" else [token for document in documents for token in document[1:]]
    # With a document's mask the first token of a document is nobody's target.
    assert counted(one) == sorted(expected)
    assert one.sequences.num_sequences == -(-(len(stream) - 1) // SEQ_LEN)


def test_batches_are_bounded(tmp_path: Path) -> None:
    """By the set, else by the evaluation, and never more than the set has."""
    long, other, short = opened(tmp_path, ["x" * 2000], ["y" * 2000], ["z" * 20])
    assert [one.num_batches(2) for one in (long, other, short)] == [3, 2, 1]
    assert [one.num_batches(8) for one in (long, other, short)] == [3, 2, 1]
    assert long.num_batches(100) == 2


def test_a_set_has_its_own_order_and_identity(tmp_path: Path) -> None:
    """The same text is the same rows whatever its name; another text has another identity."""
    first, second, third = opened(tmp_path, ["all work"] * 9, ["all work"] * 9, ["no play"] * 9)
    rows = np.arange(4)
    assert np.array_equal(first.sequences.rows(rows).tokens, second.sequences.rows(rows).tokens)
    assert first.identity
    assert second.identity
    assert third.identity
    assert first.identity["files"] == second.identity["files"] != third.identity["files"]


def test_all_held_out_documents_can_be_read(tmp_path: Path) -> None:
    """Those that a run keeps out of training, and no others; where there are none, that is said."""
    path = write(tmp_path / "train.jsonl", [f"{number} green bottles" for number in range(50)])
    held_out = open_held_out(data_of(path, 0.3), seq_len=SEQ_LEN, cache_root=tmp_path, watch=Watch())
    num_documents = counted(held_out).count(END)
    assert 5 < num_documents < 25
    single = write(tmp_path / "single.jsonl", ["one"])
    with pytest.raises(DataError, match="has kept no document out of training"):
        open_held_out(data_of(single, 1e-9), seq_len=SEQ_LEN, cache_root=tmp_path, watch=Watch())


def test_a_set_without_a_target_is_refused(tmp_path: Path) -> None:
    """A set of nothing has no mean; the refusal names it."""
    empty = write(tmp_path / "empty.jsonl", [""])
    sets = [EvaluationSet(name="empty", paths=(empty,))]
    with pytest.raises(DataError, match="evaluation set 'empty' has 0 tokens"):
        open_sets(
            sets,
            data_of(empty),
            seq_len=SEQ_LEN,
            cache_root=tmp_path,
            watch=Watch(),
            most=2,
        )


def test_a_set_may_be_a_token_store(tmp_path: Path) -> None:
    """It is what its text is, whatever the job holds out, also without repeated documents; one with a part is not."""
    path = write(tmp_path / "books.jsonl", [f"{number % 30} green bottles" for number in range(60)])

    def opened_store(**fields: object) -> Evaluated:
        made = Data.model_validate({"train": [{"name": "books", "paths": [path]}], **fields})
        (store,) = build(made, str(tmp_path / "stores"), run=map, progress=lambda *_: None)
        return opened_set(store.url)

    def opened_set(place: str) -> Evaluated:
        given: dict[str, Any] = {
            "seq_len": SEQ_LEN,
            "cache_root": tmp_path,
            "watch": Watch(),
        }
        sets = [EvaluationSet(name="books", paths=(place,))]
        (one,) = open_sets(sets, data_of(path, 0.2), most=None, **given)
        return one

    of_store, of_text = opened_store(), opened_set(path)
    assert counted(of_store) == counted(of_text)
    assert of_store.identity == of_text.identity
    assert counted(opened_store(dedup="exact")).count(END) == 30
    with pytest.raises(DataError, match=r"set 'books': its token store holds out 0\.2 .* heldOut: 0, or name the text"):
        opened_store(heldOut=0.2)
