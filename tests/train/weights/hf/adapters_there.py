"""Adapters of ours as PEFT reads them, against the models that have them added: `make test-hf`, in .venv-hf.

python -m tests.train.weights.hf.adapters_there FOLDER, in which `adapters_here` has written both
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
from peft import PeftModel
from tests.train.weights.hf.random_models import rounding
from tests.train.weights.hf.record import computed, loaded


def main() -> None:
    """Compare every model of FOLDER/published with its adapters and its merged one."""
    torch.set_grad_enabled(False)
    folder = Path(sys.argv[1])
    models = sorted(out.parent for out in folder.glob("*/adapters"))
    assert models, folder
    worst = max(_difference(folder / "published" / ours.name, ours) for ours in models)
    print(f"{len(models)} models with adapters differ by up to {worst:.2f} of what rounding may do")  # noqa: T201  the command's output


def _difference(published: Path, ours: Path) -> float:
    """Return by how much of rounding PEFT's logits differ from those of the merged model."""
    is_phi = json.loads((published / "config.json").read_text(encoding="utf-8"))["model_type"] == "phi3"
    base = ours if is_phi else published  # most are exported as Llama or Mistral, and so are their adapters
    plain = computed(loaded(base))["logits"]
    adapted = PeftModel.from_pretrained(loaded(base), ours / "adapters")
    found, expected = computed(adapted)["logits"], computed(loaded(ours / "merged"))["logits"]
    assert np.abs(plain - expected).max() > 100 * rounding(expected), (ours, "the adapters change nothing")
    share = float(np.abs(found - expected).max()) / rounding(expected)
    assert share < 1, (ours, share)
    return share


if __name__ == "__main__":
    main()
