"""Which file of weights a path means, and what to do where it means none."""

import json
import re
from pathlib import Path
from typing import Any

from shardwise.protocol.errors import DataError

MODEL_FILES = ("model.safetensors", "model.safetensors.index.json")
"""What a folder of weights means by itself, the first that is there, as for transformers."""
_OTHER_FORMATS = (".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".gguf", ".onnx")
_CONVERT = (
    "get the model's safetensors files, or write them with transformers: "
    "AutoModelForCausalLM.from_pretrained(FOLDER).save_pretrained(NEW_FOLDER)"
)
_HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")


def locate(path: Path) -> Path:
    """Return the safetensors file, or the index of several, that a path means: itself or in its folder.

    Raises:
        DataError: there is none; it says what to give instead.
    """
    if path.is_dir():
        return _in_folder(path)
    if not path.exists():
        raise DataError(_missing(path))
    if path.suffix in _OTHER_FORMATS:
        raise DataError(f"{path}: is no safetensors file; {_CONVERT}")
    if path.suffix == ".json":
        _check_index(path)
    if index := _index_with(path):
        raise DataError(f"{path}: is one of several files of a model; give their index, {index}, or its folder")
    return path


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file; DataError for anything else."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path}: cannot be read ({error}); expected JSON: get the file anew") from error
    if not isinstance(value, dict):
        raise DataError(f"{path}: expected a JSON object; get the file anew")
    return value


def _check_index(path: Path) -> None:
    index = read_json(path)
    if "weight_map" not in index:
        raise DataError(f"{path}: is no index of weights; give the folder that it lies in")
    places = index["weight_map"]
    if isinstance(places, dict) and any(Path(str(file)).suffix in _OTHER_FORMATS for file in places.values()):
        raise DataError(f"{path}: is the index of files that are no safetensors files; {_CONVERT}")


def _in_folder(folder: Path) -> Path:
    for name in MODEL_FILES:
        if (folder / name).exists():
            return folder / name
    expected = f"expected {' or '.join(MODEL_FILES)} in it"
    there = sorted(file.name for file in folder.iterdir())
    others = [name for name in there if Path(name).suffix in _OTHER_FORMATS]
    shards = [name for name in there if name.endswith(".safetensors")]
    snapshots = sorted((folder / "snapshots").glob("*"))
    if snapshots:
        raise DataError(f"{folder}: is a cache of downloads; give the folder of one, such as {snapshots[-1]}")
    if shards:
        raise DataError(f"{folder}: {expected}, found {shards[0]}; get the index too, or give the file itself")
    if others:
        raise DataError(f"{folder}: {expected}, found {others[0]}; {_CONVERT}")
    raise DataError(f"{folder}: given a folder without weights, {expected}")


def _missing(path: Path) -> str:
    if path.suffix not in (".safetensors", ".json") and _HUB_NAME.fullmatch(str(path)):
        return (
            f"{path}: no such file or folder, and nothing is downloaded here; get the model's folder first, such as "
            f"with `hf download {path} --local-dir FOLDER`, and give that"
        )
    return f"{path}: cannot be read: No such file or directory; expected a safetensors file"


def _index_with(path: Path) -> Path | None:
    """Return the index beside a file that names it, if there is one."""
    for index in sorted(path.parent.glob("*.safetensors.index.json")):
        places = read_json(index).get("weight_map")
        if isinstance(places, dict) and path.name in places.values() and len(set(places.values())) > 1:
            return index
    return None
