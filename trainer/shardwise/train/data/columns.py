"""Documents from a column of text: Parquet files, and Arrow files as Hugging Face `datasets` saves them.

Row by row a document, in row groups or record batches of which one is held at a time. A Parquet file may be cut before
a row group, an Arrow file before a record batch. Only here is pyarrow imported, and only for such a file.
"""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any, NamedTuple

from shardwise.protocol.errors import DataError
from shardwise.train.data.files import DataFile, reading
from shardwise.train.data.steady import Steady

PARQUET, ARROW = "parquet", "arrow"
_ROWS = 1024  # of a row group that are held at once
_BUFFER_BYTES = 1 << 20
_FILE_MAGIC = b"ARROW1\0\0"  # before the messages of an Arrow file; those of `datasets` have none, and no footer


class Text(NamedTuple):
    """The text of a row, counted from 0 in its file."""

    row: int
    content: bytes


def rows(file: DataFile, kind: str, text_field: str, start: int, stop: int, first_row: int) -> Iterator[Text]:
    """Yield the rows that begin in bytes `start` up to `stop`; `first_row` numbers the first of them.

    Raise DataError for a file that is not what its suffix says, and a column that is not there or has no text.
    """
    with _open(file) as source:
        batches = (_parquet_batches if kind == PARQUET else _arrow_batches)(source, file, text_field, start, stop)
        for batch in batches:
            for row, content in enumerate(_contents(batch), start=first_row):
                if content is None:
                    raise DataError(f"{file.url}, row {row + 1}: null in {text_field!r}; expected text. Leave it out.")
                yield Text(row, content)
            first_row += len(batch)


def cuts(file: DataFile, kind: str, part_bytes: int) -> list[list[int]]:
    """Return where the file may be cut, at least `part_bytes` apart: [bytes before, rows before] each."""
    found: list[list[int]] = []
    with _open(file) as source:
        for offset, num_rows in (_parquet_offsets if kind == PARQUET else _arrow_offsets)(source):
            if offset - (found[-1][0] if found else 0) >= part_bytes:
                found.append([offset, num_rows])
    return found


@contextmanager
def _open(file: DataFile) -> Iterator[Any]:
    """Open the file for pyarrow, and name it in what pyarrow finds wrong with it."""
    try:
        import pyarrow as pa  # noqa: PLC0415  only for such a file
    except ModuleNotFoundError as error:
        raise DataError(
            f"{file.url!r} needs pyarrow, which is not installed; expected it for Parquet and Arrow files. Install it: "
            'pip install "shardwise[train,parquet]", or write the text as .jsonl.'
        ) from error
    with reading(file.url), closing(_Seekable(file)) as handle:
        try:
            yield pa.PythonFile(handle, mode="r")
        except pa.ArrowInvalid as error:
            raise DataError(
                f"{file.url!r} is not what its suffix says: {error}. Expected a whole Parquet file (.parquet), or an "
                "Arrow file or stream (.arrow)."
            ) from error


class _Seekable(Steady):
    """A file for pyarrow, which also asks for positions from the end."""

    def __init__(self, file: DataFile) -> None:
        super().__init__(file.url)
        self._size_bytes = file.size_bytes

    def seek(self, position: int, whence: int = 0) -> int:
        """Go to a position, counted from the start, from here or from the end; return it from the start."""
        target = position + (0, self.tell(), self._size_bytes)[whence]
        if target != self.tell():
            self.move_to(target)
        return target

    def read(self, size: int = -1) -> bytes:
        """Return the next `size` bytes, fewer at the end."""
        left = max(0, self._size_bytes - self.tell())
        wanted = left if size < 0 else min(size, left)
        blocks = []
        while wanted and (block := super().read(wanted)):
            blocks.append(block)
            wanted -= len(block)
        return b"".join(blocks)

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True


def _parquet_batches(source: Any, file: DataFile, text_field: str, start: int, stop: int) -> Iterator[Any]:
    from pyarrow import parquet  # noqa: PLC0415  only for such a file

    opened = parquet.ParquetFile(source, buffer_size=_BUFFER_BYTES)
    _check_column(opened.schema_arrow, file, text_field)
    begins = _row_group_begins(opened.metadata)
    for number, begin in enumerate(begins):
        if start <= begin < stop:
            for batch in opened.iter_batches(_ROWS, row_groups=[number], columns=[text_field]):
                yield batch.column(text_field)


def _parquet_offsets(source: Any) -> Iterator[tuple[int, int]]:
    from pyarrow import parquet  # noqa: PLC0415  only for such a file

    metadata = parquet.ParquetFile(source).metadata
    num_rows = 0
    for number, begin in enumerate(_row_group_begins(metadata)):
        yield begin, num_rows
        num_rows += metadata.row_group(number).num_rows


def _row_group_begins(metadata: Any) -> list[int]:
    """Return the byte of the file at which each row group begins; all 0 if they do not lie in order."""
    begins = []
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        columns = [group.column(index) for index in range(group.num_columns)]
        pages = [(column.dictionary_page_offset, column.data_page_offset) for column in columns]
        begins.append(min((offset for each in pages for offset in each if offset is not None), default=0))
    if begins != sorted(begins):
        return [0] * len(begins)
    return [0, *begins[1:]] if begins else []


def _arrow_batches(source: Any, file: DataFile, text_field: str, start: int, stop: int) -> Iterator[Any]:
    import pyarrow as pa  # noqa: PLC0415  only for such a file

    _skip_magic(source)
    if not start and stop == file.size_bytes:
        reader = pa.ipc.open_stream(source)
        _check_column(reader.schema, file, text_field)
        for batch in reader:
            yield batch.column(text_field)
        return
    schema = pa.ipc.read_schema(source)
    _check_column(schema, file, text_field)
    source.seek(start or source.tell())
    while source.tell() < stop and (message := _next_message(source)) is not None:
        yield pa.ipc.read_record_batch(message, schema).column(text_field)


def _arrow_offsets(source: Any) -> list[tuple[int, int]]:
    """Return where record batches begin; nothing if there is a dictionary, without which they cannot be read."""
    import pyarrow as pa  # noqa: PLC0415  only for such a file

    _skip_magic(source)
    schema = pa.ipc.read_schema(source)
    found = []
    offset, num_rows = source.tell(), 0
    while (message := _next_message(source)) is not None:
        if message.type != "record batch":
            return []
        found.append((offset, num_rows))
        num_rows += pa.ipc.read_record_batch(message, schema).num_rows
        offset = source.tell()
    return found


def _next_message(source: Any) -> Any:
    """Return the next message of a stream; None at its end."""
    import pyarrow as pa  # noqa: PLC0415  only for such a file

    try:
        return pa.ipc.read_message(source)
    except EOFError:
        return None


def _skip_magic(source: Any) -> None:
    if source.read(len(_FILE_MAGIC)) != _FILE_MAGIC:
        source.seek(0)


def _check_column(schema: Any, file: DataFile, text_field: str) -> None:
    import pyarrow as pa  # noqa: PLC0415  only for such a file

    if schema.names.count(text_field) != 1:
        has = ", ".join(map(repr, schema.names)) or "none"
        raise DataError(
            f"{file.url!r} has no column {text_field!r} (its columns: {has}); expected one of text. Set textField."
        )
    found = schema.field(text_field).type
    kind = found.value_type if pa.types.is_dictionary(found) else found
    if not any(is_text(kind) for is_text in (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)):
        texts = [field.name for field in schema if pa.types.is_string(field.type)]
        raise DataError(
            f"{file.url!r}: column {text_field!r} holds {found}; expected text"
            + (f", as in {', '.join(map(repr, texts))}. Set textField." if texts else ".")
        )


def _contents(column: Any) -> list[bytes | None]:
    import pyarrow as pa  # noqa: PLC0415  only for such a file

    plain = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
    contents: list[bytes | None] = plain.cast(pa.large_binary()).to_pylist()
    return contents
