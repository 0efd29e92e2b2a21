"""Token streams on disk."""

from pathlib import Path

import numpy as np
import pytest

from shardwise.train.data.token_stream import StreamLayout, StreamWriter, TokenStream

END = 9


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
