"""Random models by transformers: `make test-hf`, in .venv-hf, before and after `random_here` has read and written them.

python -m tests.train.weights.hf.random_there make FOLDER FIRST COUNT    FOLDER/SEED/published and its computed.npz
python -m tests.train.weights.hf.random_there check FOLDER               what was exported gives the same logits
"""

import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.numpy import save_file
from tests.train.weights.hf.drawn import drawn
from tests.train.weights.hf.random_models import as_written, num_files, random_model, rounding
from tests.train.weights.hf.record import computed, loaded
from transformers import AutoConfig, AutoModelForCausalLM

_DEFAULTS = ("bos_token_id", "eos_token_id", "pad_token_id")


def main() -> None:
    """Make the models, or read the exports."""
    torch.set_grad_enabled(False)
    torch.set_num_threads(1)  # more wait for each other longer than such a model takes
    task, folder = sys.argv[1], Path(sys.argv[2])
    if task == "make":
        first, count = map(int, sys.argv[3:])
        for seed in range(first, first + count):
            _make(seed, folder / str(seed))
        return
    exports = sorted(folder.glob("*/exported"), key=lambda path: int(path.parent.name))
    assert exports, folder
    worst = max(_difference(export) for export in exports)
    print(f"{len(exports)} exports differ by up to {worst:.2f} of what rounding may do")  # noqa: T201  the command's output


def _make(seed: int, folder: Path) -> None:
    """Write a model's folder, and what it computes."""
    family, fields = random_model(seed)
    config = AutoConfig.for_model(family, **fields, **dict.fromkeys(_DEFAULTS))
    published = folder / "published"
    AutoModelForCausalLM.from_config(config).save_pretrained(published)
    file = published / "model.safetensors"
    with safe_open(file, "numpy") as tensors:
        shapes = {name: tensors.get_slice(name).get_shape() for name in tensors.keys()}  # noqa: SIM118  no mapping
    file.unlink()
    _save(published, drawn(shapes, 0.0 if family.startswith("gemma") else 1.0), num_files(seed))
    path = published / "config.json"
    saved = json.loads(path.read_text(encoding="utf-8"))
    defaults = AutoConfig.for_model(family).to_dict()
    written = as_written(saved, {key: value for key, value in defaults.items() if key not in _DEFAULTS}, seed)
    path.write_text(json.dumps(written, indent=1), encoding="utf-8")
    again = AutoConfig.from_pretrained(published).to_dict()
    wrong = {key: (value, again.get(key)) for key, value in config.to_dict().items() if again.get(key) != value}
    assert wrong.keys() <= {"_name_or_path", "dtype", "architectures"}, (seed, wrong)
    arrays = computed(loaded(published))
    np.savez(folder / "computed.npz", tokens=arrays["tokens"], logits=arrays["logits"], greedy=arrays["greedy"])


def _save(folder: Path, weights: dict[str, Any], count: int) -> None:
    """Write the tensors as one file, or as several with their index."""
    if count == 1:
        save_file(weights, folder / "model.safetensors", {"format": "pt"})
        return
    places = {name: f"model-{number % count + 1:05}-of-{count:05}.safetensors" for number, name in enumerate(weights)}
    files: dict[str, dict[str, Any]] = defaultdict(dict)
    for name, place in places.items():
        files[place][name] = weights[name]
    for place, part in files.items():
        save_file(part, folder / place, {"format": "pt"})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))


def _difference(export: Path) -> float:
    """Return by how much of rounding an export's logits differ; its tokens may not."""
    again = computed(loaded(export))
    with np.load(export.parent / "computed.npz") as first:
        assert (first["greedy"] == again["greedy"]).all(), export
        share = float(np.abs(first["logits"] - again["logits"]).max()) / rounding(first["logits"])
    assert share < 1, (export, share)
    return share


if __name__ == "__main__":
    main()
