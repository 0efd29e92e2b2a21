"""The files of a tokenizer beside published weights: the tokens around a document, and copies for an export."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shardwise.protocol.errors import DataError
from shardwise.train.data.files import fetch
from shardwise.train.weights.locate import read_json
from shardwise.train.weights.reading import CONFIG_FILE
from shardwise.train.weights.safetensors_file import replacing

TOKENIZER_FILE = "tokenizer.json"
GENERATION_FILE = "generation_config.json"
_TOKENIZER_CONFIG = "tokenizer_config.json"
_CHAT_TEMPLATE = "chat_template.jinja"
_BESIDE = (_TOKENIZER_CONFIG, "special_tokens_map.json", _CHAT_TEMPLATE, "added_tokens.json")
Ids = int | list[int] | None
"""Tokens by their numbers, as the files of published models have one, several or none."""


def special_tokens(tokenizer: Path) -> tuple[str | None, str | None]:
    """Return the tokens that begin and end a document, as the files beside a tokenizer.json say; None: they do not.

    A token begins documents if the tokenizer itself puts it before a text. Raise DataError for a file that is none.
    """
    from tokenizers import Tokenizer as Library  # noqa: PLC0415  not needed for weights without a tokenizer

    try:
        library = Library.from_file(str(tokenizer))
    except Exception as error:  # the library raises plain Exception
        raise DataError(f"{tokenizer}: cannot be read as a tokenizer.json ({error}); get the file anew") from error
    library.no_padding()  # either would have a say in what comes first
    library.no_truncation()
    first = library.encode("a", add_special_tokens=True).ids[:1]
    plain = library.encode("a", add_special_tokens=False).ids[:1]
    begin = library.id_to_token(first[0]) if first != plain else None
    return begin, _end_token(tokenizer.parent, library)


def fetch_tokenizer(url: str, folder: Path) -> Path:
    """Copy a tokenizer.json at a URL, and the published files beside it, into a folder; return its path there.

    Raise DataError if it cannot be read.
    """
    place = url.rpartition("/")[0]
    fetch(url, folder / TOKENIZER_FILE)
    for name in (*_BESIDE, CONFIG_FILE, GENERATION_FILE):
        fetch(f"{place}/{name}", folder / name, missing_ok=True)
    return folder / TOKENIZER_FILE


def write_tokenizer(
    source: Path | None, folder: Path, begin: str | None, end: str | None, chat_template: str | None
) -> list[str]:
    """Copy a tokenizer.json and what lies beside it into a folder; return the names of the files written.

    Where nothing beside it says which class reads it, and with which tokens, that is written. A chat template that is
    given takes the place of those there. Each file is written whole or not at all.
    """
    if source is None:
        return []
    found = [name for name in _BESIDE if (source.parent / name).exists()]
    # Read before anything is deleted: links may make files of both folders the same.
    contents = {TOKENIZER_FILE: source.read_bytes(), **{name: (source.parent / name).read_bytes() for name in found}}
    if not folder.samefile(source.parent):
        for name in _BESIDE:  # of an earlier export, which may have had other tokens
            (folder / name).unlink(missing_ok=True)
    for name, content in contents.items():
        if not (folder / name).exists() or (folder / name).read_bytes() != content:
            with replacing(folder / name) as copy:
                copy.write(content)
    if not (folder / _TOKENIZER_CONFIG).exists():
        tokens = {"bos_token": begin, "eos_token": end}
        config = {"tokenizer_class": "PreTrainedTokenizerFast", **{k: v for k, v in tokens.items() if v is not None}}
        _write(folder / _TOKENIZER_CONFIG, config)
    names = [*found, _TOKENIZER_CONFIG]
    if chat_template is not None:
        with replacing(folder / _CHAT_TEMPLATE) as written:
            written.write(chat_template.encode())
        # Readers that know no file of its own take the key.
        config = read_json(folder / _TOKENIZER_CONFIG)
        _write(folder / _TOKENIZER_CONFIG, {**config, "chat_template": chat_template})
        names.append(_CHAT_TEMPLATE)
    return [TOKENIZER_FILE, *dict.fromkeys(names)]


def write_generation_config(folder: Path, published: Mapping[str, Any], ids: Mapping[str, Ids]) -> None:
    """Write what transformers' generate begins and stops with, into what the published model has of it."""
    _write(folder / GENERATION_FILE, {**(published or {"_from_model_config": True}), **ids})


def _end_token(folder: Path, library: Any) -> str | None:
    for name in (_TOKENIZER_CONFIG, "special_tokens_map.json"):
        if (folder / name).exists():
            token = read_json(folder / name).get("eos_token")
            token = token.get("content") if isinstance(token, dict) else token
            if isinstance(token, str) and library.token_to_id(token) is not None:
                return token
    for name in (GENERATION_FILE, CONFIG_FILE):
        if (folder / name).exists():
            ids = read_json(folder / name).get("eos_token_id")
            first = ids[0] if isinstance(ids, list) and ids else ids
            if isinstance(first, int) and (token := library.id_to_token(first)) is not None:
                return str(token)
    return None


def _write(path: Path, value: Mapping[str, Any]) -> None:
    with replacing(path) as file:
        file.write((json.dumps(value, indent=2) + "\n").encode())
