"""Record what transformers makes of weights packed in MXFP4: `make record-hf`.

    python -m tests.train.weights.hf.record_mxfp4

Of small tensors what they are decoded to: the blocks have every byte, and the scales lie around 1 and at both ends of
what a bfloat16 holds. Of a small gpt-oss whose experts are packed its logits and greedy tokens, as in `record`.
"""

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save_file
from tests.train.weights.hf.packed_model import BLOCKS, SCALES, drawn_packed
from tests.train.weights.hf.record import GPT_OSS, OSS_YARN, computed
from transformers import AutoConfig, AutoModelForCausalLM, Mxfp4Config
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

HERE = Path(__file__).parent / "packed"
EXPERTS, ROWS, NUM_BLOCKS = 2, 12, 3
FIELDS = {
    **GPT_OSS,
    "hidden_size": 64,
    "intermediate_size": 32,
    "rope_parameters": {**OSS_YARN, "rope_theta": 1.5e5},
    **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id")),
}


def main() -> None:
    """Write the tensors with what they are in float32, which holds every bfloat16, and what the model computes."""
    torch.set_grad_enabled(False)
    rng = np.random.default_rng(5)
    blocks = rng.permutation(np.arange(EXPERTS * ROWS * NUM_BLOCKS * 16) % 256).astype(np.uint8)
    blocks = blocks.reshape(EXPERTS, ROWS, NUM_BLOCKS, 16)
    scales = rng.integers(115, 135, (EXPERTS, ROWS, NUM_BLOCKS)).astype(np.uint8)
    scales[0, 0, 0], scales[1, 3, 1] = 3, 251
    values = convert_moe_packed_tensors(torch.tensor(blocks), torch.tensor(scales))
    np.savez_compressed(HERE / "mxfp4.npz", blocks=blocks, scales=scales, values=values.float().numpy())
    described, arrays = _model()
    text = json.dumps(described, indent=1, sort_keys=True) + "\n"
    (HERE / "model.json").write_text(text, encoding="utf-8")
    tokens, logits, greedy = (arrays[kind] for kind in ("tokens", "logits", "greedy"))
    np.savez_compressed(HERE / "model.npz", tokens=tokens, logits=logits, greedy=greedy)


def _model() -> tuple[dict[str, Any], dict[str, np.ndarray[Any, Any]]]:
    """Return the config.json and the shapes of a packed model, and what it computes in float32."""
    config = AutoConfig.for_model("gpt_oss", **FIELDS)
    shapes: dict[str, list[int]] = {}
    for name, parameter in AutoModelForCausalLM.from_config(config).state_dict().items():
        shape = list(parameter.shape)
        if name.endswith("_proj"):
            experts, ins, outs = shape
            shapes |= {name + BLOCKS: [experts, outs, ins // 32, 16], name + SCALES: [experts, outs, ins // 32]}
        else:
            shapes[name] = shape
    saved = {
        **config.to_dict(),
        "architectures": ["GptOssForCausalLM"],
        "quantization_config": {"quant_method": "mxfp4"},
    }
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(saved), encoding="utf-8")
        save_file(drawn_packed(shapes), Path(folder) / "model.safetensors", {"format": "pt"})
        model = AutoModelForCausalLM.from_pretrained(
            folder,
            quantization_config=Mxfp4Config(dequantize=True),
            dtype=torch.float32,
            attn_implementation="eager",
            experts_implementation="eager",
        )
        return {"config": saved, "shapes": shapes}, computed(model.eval())


if __name__ == "__main__":
    main()
