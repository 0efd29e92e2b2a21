"""Token streams on disk."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from shardwise.train.data.token_stream import StreamLayout, StreamWriter, TokenStream

END = 9
READ_WITH_FEW_FILES = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
from pathlib import Path
import numpy as np
from shardwise.train.data.blocks import MappedReader, Range
from shardwise.train.data.token_stream import StreamLayout, TokenStream

folder = Path(sys.argv[1])
layout = StreamLayout(name="train", dtype="<u2", tokens_per_file=4, num_tokens=1601, num_documents=1)
readers = [MappedReader(folder, lambda number: f"train-{number:05d}.bin", np.full(400, 8)) for _ in range(3)]
stream = TokenStream(folder, layout)
for number in range(400):
    assert all(reader.read(Range(number, 0, 2)) == b"\\7\\0" for reader in readers)
assert stream.read(0, 1600).tolist() == [7] * 1600
"""


def written(directory: Path, batches: list[list[tuple[list[int], bool]]], dtype: str = "<u2") -> StreamLayout:
    """The layout of a stream of these batches of (tokens, ends its document), 4 tokens a file."""
    writer = StreamWriter(directory, "train", dtype=np.dtype(dtype), tokens_per_file=4, end_of_text=END)
    for batch in batches:
        writer.append([(np.array(tokens, np.uint8), ends) for tokens, ends in batch])
    return writer.finish()


@pytest.mark.parametrize("dtype", ["<u2", "<u4"])
def test_a_stream_reads_back_across_files(tmp_path: Path, dtype: str) -> None:
    """Any range reads what was appended, end-of-text included, whether or not it crosses files."""
    layout = written(
        tmp_path, [[([1, 2, 3], True), ([4], False)], [], [([5], True), ([6, 7, 8, 0, 1, 2], True)]], dtype
    )
    expected = [1, 2, 3, END, 4, 5, END, 6, 7, 8, 0, 1, 2, END]

    stream = TokenStream(tmp_path, layout)

    assert stream.document_ends.tolist() == [4, 7, 14]
    assert (stream.num_tokens, stream.num_documents) == (14, 3)
    for start in range(15):
        for stop in range(start, 15):
            assert stream.read(start, stop).tolist() == expected[start:stop]


def test_the_layout_says_the_size_of_every_file(tmp_path: Path) -> None:
    """What lies in the folder is exactly what the layout says."""
    for number, tokens in enumerate(([], [1], [1, 2, 3], [1, 2, 3, 4, 5, 6, 7], [1] * 8)):
        folder = tmp_path / str(number)
        folder.mkdir()
        layout = written(folder, [[(tokens, True)]] if tokens else [])

        assert {path.name: path.stat().st_size for path in folder.iterdir()} == layout.file_sizes_bytes()
        assert TokenStream(folder, layout).read(0, layout.num_tokens).tolist() == ([*tokens, END] if tokens else [])


def test_more_files_than_a_process_may_open_are_read(tmp_path: Path) -> None:
    """A map keeps its file open; a stream of a hundred billion tokens, and the parts of a store, have thousands."""
    written(tmp_path, [[([7] * 1600, True)]])

    subprocess.run([sys.executable, "-c", READ_WITH_FEW_FILES, str(tmp_path)], check=True)
