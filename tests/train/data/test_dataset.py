"""From a job's data section to batches, through the cache."""

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from shardwise.job.spec.data import Data
from shardwise.protocol.errors import DataError, StorageError
from shardwise.train.data import cache, compression, tokenise
from shardwise.train.data.dataset import Dataset, Reading, prepare
from shardwise.train.data.opening import Watch
from shardwise.train.data.sources import Document, is_held_out
from shardwise.train.data.token_stream import StreamLayout
from shardwise.train.data.tokenise import Corpus

SEQ_LEN = 16
END = 256


class Workspace:
    """A folder with data and a cache, and the reports of every preparation."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.reports: list[str] = []
        self.num_beats = 0

    def jsonl(self, name: str, texts: list[str]) -> str:
        """Writes a JSONL file and gives its path."""
        return self.write(name, "".join(json.dumps({"text": text}) + "\n" for text in texts))

    def write(self, name: str, text: str) -> str:
        """Writes a file and gives its path."""
        (self.root / name).write_text(text)
        return str(self.root / name)

    def prepare(self, *paths: str | list[str], seq_len: int = SEQ_LEN, seed: int = 0, **fields: object) -> Dataset:
        """Prepares one source for each of `paths`; `weights` [source] and fields of `data` by name."""
        weights = fields.pop("weights", [1.0] * len(paths))
        assert isinstance(weights, list)
        sources = [
            {"name": f"s{number}", "paths": [path] if isinstance(path, str) else path, "weight": weight}
            for number, (path, weight) in enumerate(zip(paths, weights, strict=True))
        ]
        data = Data.model_validate({"train": sources, **fields})
        root = self.root / "cache"
        return prepare(
            data,
            Reading(seq_len=seq_len, sequences=4, steps=100, seed=seed),
            cache_root=root,
            watch=Watch(report=self.reports.append, beat=self.beat),
        )

    def beat(self) -> None:
        """Count one."""
        self.num_beats += 1

    def builds(self) -> int:
        """How often something was tokenised."""
        return sum(line.startswith("tokenised") for line in self.reports)


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    """An empty one."""
    return Workspace(tmp_path)


def numbered(count: int, start: int = 0) -> list[str]:
    """Documents that differ."""
    return [f"document {number} " * (1 + number % 5) for number in range(start, start + count)]


def stream(texts: list[str]) -> list[int]:
    """The token stream of byte-tokenised documents."""
    return [token for text in texts for token in (*text.encode(), END)]


def test_an_epoch_holds_every_sequence_of_the_stream_once(workspace: Workspace) -> None:
    """Sequence i is tokens i S to i S + S of the stream; targets are tokens one later."""
    texts = numbered(50)
    tokens = stream(texts)
    data = workspace.prepare(workspace.jsonl("a.jsonl", texts))

    batch = data.train.rows(np.arange(data.train.num_sequences))

    assert data.train.num_sequences == (len(tokens) - 1) // SEQ_LEN
    rows = {(*row.tolist(), target[-1]) for row, target in zip(batch.tokens, batch.targets, strict=True)}
    assert rows == {tuple(tokens[i * SEQ_LEN : (i + 1) * SEQ_LEN + 1]) for i in range(data.train.num_sequences)}
    assert np.array_equal(batch.tokens[:, 1:], batch.targets[:, :-1])
    assert [array.dtype.name for array in vars(batch).values()] == ["int32", "int32", "float32", "int32"]
    assert batch.weights.min() == 1
    assert not batch.segments.any()


def test_document_attention_numbers_segments_and_drops_targets_across(workspace: Workspace) -> None:
    """Segments start anew at 0 in each sequence, end-of-text belongs to its document, and its target has weight 0."""
    texts = ["aaa", "b", "c" * 60, "dd"] * 5
    tokens = np.array(stream(texts))
    documents = np.concatenate([[0], np.cumsum(tokens == END)[:-1]])
    data = workspace.prepare(workspace.jsonl("a.jsonl", texts), attendAcross="document")
    _, sequences = data.train._order.locate(np.arange(data.train.num_sequences))

    batch = data.train.rows(np.arange(data.train.num_sequences))

    for row, sequence in enumerate(sequences):
        mine = documents[sequence * SEQ_LEN : sequence * SEQ_LEN + SEQ_LEN + 1]
        assert np.array_equal(batch.segments[row], mine[:-1] - mine[0])
        assert np.array_equal(batch.weights[row], mine[:-1] == mine[1:])


def test_rows_do_not_depend_on_how_they_are_asked(workspace: Workspace) -> None:
    """Two hosts that each ask for their rows get what one host gets for all of them."""
    paths = (workspace.jsonl("a.jsonl", numbered(40)), workspace.jsonl("b.jsonl", numbered(9, 900)))
    data = workspace.prepare(*paths, weights=[3.0, 1.0])
    whole = data.train.rows(np.arange(200, 264))

    halves = [data.train.rows(np.arange(start, start + 32)) for start in (200, 232)]

    assert np.array_equal(np.concatenate([half.tokens for half in halves]), whole.tokens)


def test_held_out_documents_are_never_trained_on(workspace: Workspace) -> None:
    """Every document is on one side, the share is about right, and no held-out text is in the training stream."""
    texts = [f"<{number:04d}>" * 8 for number in range(300)]
    data = workspace.prepare(workspace.jsonl("a.jsonl", texts), heldOut=0.2)
    assert data.held_out is not None

    in_train, in_held_out = (
        {text for text in texts if text in data.tokenizer.decode(each.read(0, each.num_tokens).tolist())}
        for each in (data.train._sequences.streams[0], data.held_out._sequences.streams[0])
    )

    (summary,) = data.sources
    assert (summary.num_documents, summary.num_held_out_documents) == (len(in_train), len(in_held_out))
    assert len(in_train) + len(in_held_out) == 300
    assert 30 < len(in_held_out) < 90


def test_held_out_rows_are_fixed_and_past_the_end_weightless(workspace: Workspace) -> None:
    """Held-out sequences come in an order free of the seed, from all sources; a number beyond adds nothing."""
    paths = (workspace.jsonl("a.jsonl", numbered(90)), workspace.jsonl("b.jsonl", ["B" * 40 + t for t in numbered(90)]))
    sets = [workspace.prepare(*paths, heldOut=0.3, seed=seed).held_out for seed in (0, 1)]
    assert sets[0] is not None
    assert sets[1] is not None
    count = sets[0].num_sequences

    batches = [each.rows(np.arange(count + 5)) for each in sets if each is not None]

    assert np.array_equal(batches[0].tokens, batches[1].tokens)
    assert np.array_equal(batches[0].weights.min(axis=1), [1] * count + [0] * 5)
    assert np.array_equal(batches[0].weights.max(axis=1), [1] * count + [0] * 5)
    assert (batches[0].tokens[: count // 3] == ord("B")).any()


def test_the_cache_is_used_again(workspace: Workspace) -> None:
    """An unchanged corpus is tokenised once, also under another name, seed, sequence length or attention."""
    path = workspace.jsonl("a.jsonl", numbered(50))
    first = workspace.prepare(path)
    moved = workspace.jsonl("moved.jsonl", numbered(50))

    prints = {
        workspace.prepare(path, seed=3).fingerprint,
        workspace.prepare(path, seq_len=8, attendAcross="document").fingerprint,
        workspace.prepare(moved).fingerprint,
    }

    assert (workspace.builds(), prints) == (1, {first.fingerprint})


def test_unchanged_files_are_not_read_again(workspace: Workspace) -> None:
    """A digest is remembered by the file's stamp; a file written a moment ago is not trusted to that."""
    path = workspace.jsonl("a.jsonl", numbered(50))
    for _ in range(2):
        workspace.prepare(path)
    assert sum(line.startswith("reading") for line in workspace.reports) == 2
    os.utime(path, (1_000_000_000, 1_000_000_000))

    for _ in range(2):
        workspace.prepare(path)

    assert sum(line.startswith("reading") for line in workspace.reports) == 3


@pytest.mark.parametrize(
    "change",
    [
        lambda w, _: w.prepare(w.jsonl("a.jsonl", numbered(51))),
        lambda w, p: w.prepare(p, heldOut=0.3),
        lambda w, p: w.prepare(w.write("a.txt", Path(p).read_text())),
        lambda w, p: w.prepare([p, w.jsonl("b.jsonl", ["more"])]),
    ],
    ids=["content", "held-out", "kind", "files"],
)
def test_other_content_is_other_data(workspace: Workspace, change: Callable[[Workspace, str], Dataset]) -> None:
    """What changes the tokens changes the fingerprint, and is tokenised anew."""
    path = workspace.jsonl("a.jsonl", numbered(50))
    before = workspace.prepare(path).fingerprint

    assert change(workspace, path).fingerprint != before
    assert workspace.builds() == 2


def test_weights_are_part_of_the_fingerprint_by_ratio(workspace: Workspace) -> None:
    """Another mixture is other data; the same ratio in other numbers is not."""
    paths = (workspace.jsonl("a.jsonl", numbered(20)), workspace.jsonl("b.jsonl", numbered(20, 50)))

    first, same, other = (
        workspace.prepare(*paths, weights=w).fingerprint for w in ([1.0, 3.0], [2.0, 6.0], [1.0, 1.0])
    )

    assert (first == same, first == other) == (True, False)


def test_a_damaged_cache_is_built_again(workspace: Workspace) -> None:
    """A truncated or missing file, a changed index or a missing marker is seen, reported and repaired."""
    path = workspace.jsonl("a.jsonl", numbered(50))
    before = workspace.prepare(path).train.rows(np.arange(8)).tokens
    (folder,) = (each for each in (workspace.root / "cache" / "data").iterdir() if each.is_dir())
    harms: list[Callable[[], object]] = [
        lambda: os.truncate(folder / "train-00000.bin", 10),
        (folder / "train.ends").unlink,
        (folder / "COMPLETE").unlink,
        (folder / "index.json").unlink,
        lambda: (folder / "index.json").write_text("{}"),
    ]

    for number, harm in enumerate(harms, start=2):
        harm()
        assert np.array_equal(workspace.prepare(path).train.rows(np.arange(8)).tokens, before)
        assert workspace.builds() == number
    assert sum("is damaged" in line for line in workspace.reports) == len(harms)


def test_a_full_disk_is_said_and_leaves_no_rubbish(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Running out of space names the cache and the way out; after making room the same call works."""
    path = workspace.jsonl("a.jsonl", numbered(50))

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(StorageError, match=r"cannot use the data cache .*No space left on device.*SHARDWISE_CACHE"):
            workspace.prepare(path)

    assert not [each for each in (workspace.root / "cache" / "data").iterdir() if each.is_dir()]
    assert workspace.prepare(path).num_tokens > 0


def test_preparing_gets_on_block_by_block(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading for the digest and tokenising beat all the way, so that however long it takes is no hang."""
    monkeypatch.setattr(compression, "BLOCK_BYTES", 1000)
    monkeypatch.setattr(tokenise, "_BATCH_BYTES", 1000)
    path = workspace.write("a.txt", "text " * 2000)
    workspace.prepare(path)
    assert workspace.num_beats >= 15


def test_the_last_look_at_each_file_gets_on(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """To see whether files changed takes a bucket a request for each: minutes with 100,000, which are no hang."""
    tokenised: list[int] = []

    def noting(*given: Any) -> list[StreamLayout]:
        layouts = tokenise.write_streams(*given)
        tokenised.append(workspace.num_beats)
        return layouts

    monkeypatch.setattr(cache, "write_streams", noting)
    for number in range(20):
        workspace.write(f"{number}.txt", "text")
    workspace.prepare(f"{workspace.root}/*.txt")

    assert workspace.num_beats - tokenised[0] >= 20


def test_what_another_process_builds_is_followed(tmp_path: Path) -> None:
    """While its files grow the one that waits gets on; when they stop, it may be stopped or hang, so it does not."""
    beats: list[int] = []
    building = tmp_path / "key.building"
    look = cache._follower(building, lambda: beats.append(1))
    look()
    assert not beats
    building.mkdir()
    for size, expected in ((0, 1), (5, 2), (5, 2), (9, 3), (9, 3)):
        (building / "train-00000.bin").write_bytes(b"x" * size)
        look()
        assert len(beats) == expected


def test_a_file_that_changes_while_it_is_read_is_refused(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens that do not belong to the digest never enter the cache."""
    path = workspace.jsonl("a.jsonl", numbered(50))
    real = Corpus.identity

    def meddling(corpus: Corpus) -> dict[str, object]:
        workspace.jsonl("a.jsonl", numbered(60))
        return real(corpus)

    monkeypatch.setattr(Corpus, "identity", meddling)

    with pytest.raises(DataError, match="changed while it was being tokenised"):
        workspace.prepare(path)


@pytest.mark.parametrize(
    ("text", "held_out", "words"),
    [
        ("short", 0, r"source 's0' has 6 tokens in 1 documents of 1 files; expected at least 17 \(seqLen \+ 1\)"),
        ("x" * 500, 0.1, r"heldOut 0.1 kept 0 of 1 documents .* out of training; expected at least 17"),
    ],
)
def test_too_little_data_is_refused_with_numbers(workspace: Workspace, text: str, held_out: float, words: str) -> None:
    """Less than one sequence, or nothing held out, says what there is and what is needed."""
    with pytest.raises(DataError, match=words):
        workspace.prepare(workspace.write("a.txt", text), heldOut=held_out)


def test_everything_held_out_is_refused(workspace: Workspace) -> None:
    """A single document that falls into the held-out part leaves nothing to train on, and the error says so."""
    single = next(text for text in numbered(100) if is_single_held_out(text))

    with pytest.raises(DataError, match=r"has 0 training tokens in 0 documents; .* heldOut 0.5 kept 1 documents"):
        workspace.prepare(workspace.write("a.txt", single), heldOut=0.5)


def is_single_held_out(text: str) -> bool:
    """Whether a document of this text is held out at 0.5."""
    return is_held_out(Document(where="", row=0, parts=lambda: iter((text.encode(),))), 0.5)


def test_empty_files_are_skipped_by_a_glob_and_refused_by_name(workspace: Workspace) -> None:
    """Among many files an empty one is nothing; named in the job it is a mistake."""
    workspace.write("a.txt", "text " * 50)
    empty = workspace.write("b.txt", "")

    assert workspace.prepare(str(workspace.root / "*.txt")).sources[0].num_documents == 1
    with pytest.raises(DataError, match=r"b.txt' is empty"):
        workspace.prepare(empty)


def test_remote_data_is_read_and_cached_locally(workspace: Workspace) -> None:
    """A remote corpus gives the tokens and the fingerprint of its local copy, and is read once."""
    texts = numbered(50)
    local = workspace.prepare(workspace.jsonl("a.jsonl", texts))
    fsspec.filesystem("memory").pipe("/bucket/data/a.jsonl", Path(workspace.root / "a.jsonl").read_bytes())
    workspace.reports.clear()

    remote = [workspace.prepare("memory://bucket/data/*.jsonl") for _ in range(2)]

    assert {each.fingerprint for each in remote} == {local.fingerprint}
    assert workspace.builds() == 0
    assert sum(line.startswith("reading") for line in workspace.reports) == 1


def test_a_tokenizer_json_is_used_and_keyed(workspace: Workspace) -> None:
    """Tokens come from the file, in four bytes where the vocabulary needs it, and another file is other data."""
    words = {f"w{number}": number for number in range(70_000)} | {"<eos>": 70_000}
    tokenizer = Tokenizer(models.WordLevel(vocab=words))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(workspace.root / "t.json"))
    path = workspace.jsonl("a.jsonl", ["w69999 w7 " * 20])

    data = workspace.prepare(path, tokenizer=str(workspace.root / "t.json"))

    assert data.train.rows(np.zeros(1, np.int64)).tokens[0, :2].tolist() in ([69999, 7], [7, 69999])
    assert data.fingerprint != workspace.prepare(path).fingerprint


def test_entropies_of_known_text(workspace: Workspace) -> None:
    """Of a repeated pattern of four letters, one token tells log 4 nats, and the token before tells all."""
    data = workspace.prepare(workspace.write("a.txt", "abcd" * 4000))

    assert data.entropies() == {"unigram": pytest.approx(np.log(4), abs=1e-3), "bigram": pytest.approx(0, abs=1e-3)}
