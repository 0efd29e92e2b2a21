"""Import every recorded model and export it again, for transformers to read: `make test-hf`.

python -m tests.train.weights.hf.exports FOLDER
"""

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tests.train.weights.hf.drawn import drawn

from shardwise.train.weights import read, write
from shardwise.train.weights.llama_families import PHI3

HERE = Path(__file__).parent


def main() -> None:
    """Write FOLDER/NAME/model.safetensors with its config.json for every recording."""
    target = Path(sys.argv[1])
    for recording in sorted(HERE.glob("*.json")):
        described = json.loads(recording.read_text(encoding="utf-8"))
        source, out = target / "published" / recording.stem, target / recording.stem
        for folder in (source, out):
            folder.mkdir(parents=True)
        save_file(drawn(described["shapes"], described["gains"]), source / "model.safetensors", {"format": "pt"})
        (source / "config.json").write_text(json.dumps(described["config"]), encoding="utf-8")
        config, parameters = read(source)
        whole = ((path, stored[tuple(slice(None) for _ in stored.shape)]) for path, stored in parameters)
        write(out / "model.safetensors", config, whole)


def as_published(published: Iterable[str], exported: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Join what has these names, of an export that has it apart."""
    for name in published:
        for joined, parts in PHI3.joined.items():
            if f".{joined}." in name and name not in exported:
                exported[name] = np.concatenate([exported.pop(name.replace(joined, part)) for part in parts])
    return exported


if __name__ == "__main__":
    main()
