"""The tokenizer beside published weights, in and out."""

import json
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.train.data.test_tokenizer import library_tokenizer
from tokenizers import AddedToken, Tokenizer, processors

from shardwise.protocol.errors import DataError
from shardwise.train.weights import special_tokens, write_generation_config, write_tokenizer


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A tokenizer.json with <bos>, <eos> and </s>, which puts <bos> in front."""
    library = library_tokenizer("</s>")
    library.add_special_tokens([AddedToken("<bos>", special=True), AddedToken("<eos>", special=True)])
    library.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 257)])
    (tmp_path / "model").mkdir()
    library.save(str(tmp_path / "model" / "tokenizer.json"))
    return tmp_path / "model" / "tokenizer.json"


@pytest.mark.parametrize(
    ("name", "content", "end"),
    [
        ("tokenizer_config.json", {"eos_token": "<eos>"}, "<eos>"),
        ("special_tokens_map.json", {"eos_token": {"content": "<eos>"}}, "<eos>"),
        ("generation_config.json", {"eos_token_id": [258, 256]}, "<eos>"),
        ("config.json", {"eos_token_id": 256}, "</s>"),
        ("config.json", {"eos_token_id": 9000}, None),
    ],
)
def test_tokens_are_those_that_the_files_name(
    name: str, content: dict[str, object], end: str | None, path: Path
) -> None:
    """The begin token is what the tokenizer puts in front, the end token what any of the files beside it says."""
    (path.parent / name).write_text(json.dumps(content), encoding="utf-8")
    assert special_tokens(path) == ("<bos>", end)


def test_a_tokenizer_that_puts_nothing_in_front_begins_nothing(tmp_path: Path) -> None:
    """As GPT-2's, though it names a begin token."""
    library_tokenizer().save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text('{"bos_token": "<|endoftext|>"}', encoding="utf-8")
    assert special_tokens(tmp_path / "tokenizer.json") == (None, None)


@pytest.mark.parametrize("direction", ["left", "right"])
def test_padding_and_truncation_have_no_say_in_what_begins_a_text(path: Path, direction: str) -> None:
    """A tokenizer.json may carry both, of whoever trained with it: neither is used on documents."""
    library = Tokenizer.from_file(str(path))
    library.enable_padding(direction=direction, length=8)
    library.enable_truncation(max_length=1)
    library.save(str(path))
    assert special_tokens(path)[0] == "<bos>"


def test_a_file_that_is_no_tokenizer_is_refused(tmp_path: Path) -> None:
    """Its error is in words, not the library's."""
    (tmp_path / "tokenizer.json").write_text("{}", encoding="utf-8")
    with pytest.raises(DataError, match=r"cannot be read as a tokenizer\.json"):
        special_tokens(tmp_path / "tokenizer.json")


def test_an_export_has_its_tokenizer_beside_it(path: Path, tmp_path: Path) -> None:
    """With the files that lay beside it, or else one that says how it is read."""
    out = tmp_path / "out"
    out.mkdir()
    assert write_tokenizer(path, out, "<bos>", "<eos>", None) == ["tokenizer.json", "tokenizer_config.json"]
    assert (out / "tokenizer.json").read_bytes() == path.read_bytes()
    known = json.loads((out / "tokenizer_config.json").read_text())
    assert (known["bos_token"], known["eos_token"]) == ("<bos>", "<eos>")

    (path.parent / "tokenizer_config.json").write_text('{"tokenizer_class": "GPT2Tokenizer"}', encoding="utf-8")
    (path.parent / "chat_template.jinja").write_text("{{ x }}", encoding="utf-8")
    again = tmp_path / "again"
    again.mkdir()
    names = ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"]
    assert write_tokenizer(path, again, None, None, None) == names
    assert {file.name for file in again.iterdir()} == {*names}
    assert "GPT2Tokenizer" in (again / "tokenizer_config.json").read_text()
    write_generation_config(again, {}, {"bos_token_id": 257, "eos_token_id": 258})
    assert json.loads((again / "generation_config.json").read_text())["eos_token_id"] == 258


def test_a_second_export_has_nothing_of_the_first_ones_tokenizer(path: Path, tmp_path: Path) -> None:
    """Into the same folder, with other tokens and no chat template; the tokenizer's own folder keeps its files."""
    out = tmp_path / "out"
    out.mkdir()
    write_tokenizer(path, out, "<bos>", "<eos>", "{{ old }}")
    write_tokenizer(path, out, "<bos>", "</s>", None)
    known = json.loads((out / "tokenizer_config.json").read_text())
    assert (known["eos_token"], known.get("chat_template")) == ("</s>", None)
    assert not (out / "chat_template.jinja").exists()

    (path.parent / "tokenizer_config.json").write_text('{"tokenizer_class": "GPT2Tokenizer"}', encoding="utf-8")
    write_tokenizer(path, path.parent, None, None, None)
    assert "GPT2Tokenizer" in (path.parent / "tokenizer_config.json").read_text()


@pytest.mark.parametrize("way", ["..", "a link to the folder", "links to the files", "links of the files"])
def test_an_export_beside_the_tokenizer_keeps_its_files(way: str, path: Path, tmp_path: Path) -> None:
    """However the folder is named: none of what lies beside the tokenizer is deleted, nor copied onto itself."""
    contents = {"tokenizer_config.json": '{"eos_token": "<eos>"}', "chat_template.jinja": "{{ x }}"}
    for name, content in contents.items():
        (path.parent / name).write_text(content, encoding="utf-8")
    folder = path.parent / ".." / "model" if way == ".." else tmp_path / "linked"
    if way == "a link to the folder":
        folder.symlink_to(path.parent)
    elif way.startswith("links"):
        folder.mkdir()
        for name in ("tokenizer.json", *contents):
            (path.parent / name).rename(folder / name)
            (path.parent / name).symlink_to(folder / name)
            if way == "links to the files":
                (folder / name).rename(path.parent / name)
                (folder / name).symlink_to(path.parent / name)
    before = path.read_bytes()
    assert write_tokenizer(path, folder, None, None, None) == ["tokenizer.json", *contents]
    assert path.read_bytes() == before
    assert {name: (path.parent / name).read_text() for name in contents} == contents
    assert {name: (folder / name).read_text() for name in contents} == contents


def test_an_export_has_the_chat_template_that_is_given(path: Path, tmp_path: Path) -> None:
    """In place of the published one, for readers of either file."""
    out = tmp_path / "out"
    out.mkdir()
    (path.parent / "tokenizer_config.json").write_text(
        '{"eos_token": "<eos>", "chat_template": "old"}', encoding="utf-8"
    )
    names = ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"]
    assert write_tokenizer(path, out, None, None, "{{ new }}") == names
    assert (out / "chat_template.jinja").read_text() == "{{ new }}"
    known = json.loads((out / "tokenizer_config.json").read_text())
    assert known == {"eos_token": "<eos>", "chat_template": "{{ new }}"}


def test_a_file_that_has_no_room_leaves_no_half_of_itself(path: Path, tmp_path: Path) -> None:
    """Whichever of them it is, each file that is there can be read, and nothing lies beside them."""
    (path.parent / "special_tokens_map.json").write_text('{"eos_token": "<eos>"}', encoding="utf-8")
    template = "{# " + "long " * 9000 + "#}"

    def export(out: Path) -> dict[str, bytes]:
        out.mkdir(exist_ok=True)
        write_generation_config(out, {}, {"bos_token_id": 257, "eos_token_id": 258})
        write_tokenizer(path, out, "<bos>", "<eos>", template)
        return {file.name: file.read_bytes() for file in out.iterdir()}

    whole = export(tmp_path / "out")
    for most in {len(content) - 1 for content in whole.values()}:
        out = tmp_path / f"out-{most}"
        with _files_have_at_most(most), pytest.raises(OSError, match="File too large"):
            export(out)
        for file in out.iterdir():
            assert file.name in whole
            if file.suffix == ".json":
                json.loads(file.read_bytes())
            else:
                assert file.read_bytes() == whole[file.name]


@contextmanager
def _files_have_at_most(num_bytes: int) -> Iterator[None]:
    """Have the system refuse what this process would write beyond so many bytes of a file."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
