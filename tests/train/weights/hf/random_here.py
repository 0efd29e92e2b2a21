"""Random models of transformers by Shardwise: `make test-hf`, after `random_there` has made them.

python -m tests.train.weights.hf.random_here FOLDER
"""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file
from tests.train.small_gpt import forward_of, program_of
from tests.train.weights.hf.exports import as_published
from tests.train.weights.hf.random_models import PROMPT, rounding

from shardwise.train.config import GptConfig
from shardwise.train.generate import generate
from shardwise.train.sampling import Sampling
from shardwise.train.state import Program
from shardwise.train.weights import place, read, write


def main() -> None:
    """Compare every model below FOLDER, and write FOLDER/SEED/exported."""
    wrong = {}
    for folder in sorted(Path(sys.argv[1]).iterdir(), key=lambda path: int(path.name)):
        if found := list(differences(folder)):
            wrong[folder.name] = found
            print(folder.name, *found, (folder / "published" / "config.json").read_text(encoding="utf-8"))  # noqa: T201  the command's output
    print(len(wrong), "of the models are wrong", *wrong)  # noqa: T201  as above
    sys.exit(1 if wrong else 0)


def differences(folder: Path) -> Iterator[str]:
    """Yield what is not as transformers has it: the logits, the greedy tokens, the bytes of the export."""
    config, parameters = read(folder / "published")
    program = program_of(config)
    params = place(program, config, parameters)
    with np.load(folder / "computed.npz") as arrays:
        tokens, logits, greedy = arrays["tokens"], arrays["logits"], arrays["greedy"]
    ours = forward_of(program)(params, tokens.astype(np.int32))[..., : config.vocab_size]
    if not (worst := np.abs(ours - logits).max()) < rounding(logits):
        yield f"logits differ by {worst:.1e}"
    if (made := _greedy(program, params, tokens[0], greedy.shape[1])) != greedy[0, PROMPT:].tolist():
        yield f"tokens {made} instead of {greedy[0, PROMPT:].tolist()}"
    yield from _exported(folder, config)


def _greedy(program: Program, params: Mapping[str, jax.Array], tokens: NDArray[Any], length: int) -> list[int]:
    greedy = Sampling(temperature=0)
    return list(generate(program, params, tokens[:PROMPT].tolist(), num_tokens=length - PROMPT, sampling=greedy))


def _exported(folder: Path, config: GptConfig) -> Iterator[str]:
    file = folder / "exported" / "model.safetensors"
    file.parent.mkdir()
    _, parameters = read(folder / "published")
    write(file, config, ((path, stored[tuple(slice(None) for _ in stored.shape)]) for path, stored in parameters))
    original = {name: x for part in (folder / "published").glob("*.safetensors") for name, x in load_file(part).items()}
    again = as_published(original, load_file(file))
    if again.keys() != original.keys():
        yield f"exported with other names: {sorted(again.keys() ^ original.keys())}"
    elif wrong := [name for name, array in original.items() if again[name].tobytes() != array.tobytes()]:
        yield f"exported with other bytes: {wrong}"
    if read(file)[0] != config:
        yield "the export's config.json reads as another config"


if __name__ == "__main__":
    main()
