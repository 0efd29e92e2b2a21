"""Record what transformers computes with small models of every family: `make record-hf`, and `make test-hf` to check.

    python -m tests.train.weights.hf.record                   write the recordings anew
    python -m tests.train.weights.hf.record --check FOLDER    compute again, also from our exports in FOLDER

It needs torch and transformers, which are in .venv-hf and nowhere else. A recording is a model's config.json, the
shapes of its tensors, tokens, their logits and the tokens that greedy generation adds; the weights are drawn from a
seed by `drawn`, so they need no place.
"""

import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.numpy import save_file
from tests.train.weights.hf.drawn import drawn
from tests.train.weights.hf.random_models import PROMPT
from transformers import AutoConfig, AutoModelForCausalLM

HERE = Path(__file__).parent
ROWS, POSITIONS, VOCAB = 2, 24, 90
FLOAT32_ROUNDING = 1e-5
LLAMA: Mapping[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": POSITIONS,
}
LLAMA3 = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
GEMMA = {**LLAMA, "head_dim": 16, "sliding_window": 6, "query_pre_attn_scalar": 24}
QWEN3_MOE = {**LLAMA, "head_dim": 16, "moe_intermediate_size": 40, "num_experts": 6, "num_experts_per_tok": 3}
QWEN2_MOE = {**QWEN3_MOE, "shared_expert_intermediate_size": 56}
GPT_OSS = {
    **LLAMA,
    "head_dim": 16,
    "intermediate_size": 64,
    "num_local_experts": 6,
    "num_experts_per_tok": 3,
    "sliding_window": 6,
}
OSS_YARN = {"rope_type": "yarn", "factor": 3.0, "original_max_position_embeddings": 8, "truncate": False}
GRANITE = {
    "attention_multiplier": 0.07,
    "embedding_multiplier": 12.0,
    "residual_multiplier": 0.22,
    "logits_scaling": 3.5,
}
SHARPER = {
    "rope_type": "yarn",
    "factor": 5.0,
    "original_max_position_embeddings": 8,
    "mscale": 0.707,
    "mscale_all_dim": 0.707,
}
LATENT = {
    **LLAMA,
    "num_key_value_heads": 6,
    "kv_lora_rank": 20,
    "q_lora_rank": None,
    "qk_nope_head_dim": 10,
    "qk_rope_head_dim": 4,
    "v_head_dim": 8,
    "moe_intermediate_size": 40,
    "n_routed_experts": 6,
    "n_shared_experts": 2,
    "num_experts_per_tok": 3,
    "first_k_dense_replace": 0,
}
OF_V3 = {
    **LLAMA,
    "head_dim": 16,
    "moe_intermediate_size": 40,
    "n_routed_experts": 6,
    "num_experts_per_tok": 3,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
}
GROUPS = {"n_group": 3, "topk_group": 2, "routed_scaling_factor": 2.5}
MODELS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "gpt2": ("gpt2", {"vocab_size": VOCAB, "n_embd": 48, "n_layer": 3, "n_head": 6, "n_positions": POSITIONS}),
    "gptj": (
        "gptj",
        {"vocab_size": VOCAB, "n_embd": 48, "n_layer": 3, "n_head": 6, "n_positions": POSITIONS, "rotary_dim": 4},
    ),
    "llama2": ("llama", {**LLAMA, "num_key_value_heads": 6, "rms_norm_eps": 1e-5}),
    "llama3": (
        "llama",
        {**LLAMA, "rope_theta": 5e5, "rope_scaling": {**LLAMA3, "original_max_position_embeddings": 12}},
    ),
    "llama-tied-linear": (
        "llama",
        {**LLAMA, "tie_word_embeddings": True, "rope_scaling": {"rope_type": "linear", "factor": 2.5}},
    ),
    "llama-biases": ("llama", {**LLAMA, "attention_bias": True, "mlp_bias": True, "head_dim": 12}),
    "llama-yarn": (
        "llama",
        {
            **LLAMA,
            "rope_scaling": {"rope_type": "yarn", "factor": 3.0, "original_max_position_embeddings": 8},
        },
    ),
    "mistral": ("mistral", {**LLAMA, "sliding_window": 7}),
    "mistral-no-window": ("mistral", {**LLAMA, "sliding_window": None, "head_dim": 16}),
    "phi3": ("phi3", {**LLAMA, "sliding_window": 7, "rope_theta": 2.5e5}),
    "phi3-own-heads": ("phi3", {**LLAMA, "num_key_value_heads": 6, "tie_word_embeddings": True}),
    "phi3-longrope": (
        "phi3",
        {
            **LLAMA,
            "partial_rotary_factor": 0.75,
            "original_max_position_embeddings": 4,
            "rope_scaling": {"type": "longrope", "short_factor": [1.1, 1.2, 1.3], "long_factor": [1.5, 3.0, 7.5]},
        },
    ),
    "phi3-longrope-short": (
        "phi3",
        {
            **LLAMA,
            "original_max_position_embeddings": POSITIONS,
            "rope_scaling": {
                "rope_type": "longrope",
                "factor": 4.0,
                "short_factor": [1.0, 1.2, 2.5, 4.0],
                "long_factor": [1.5, 3.0, 7.5, 20.0],
            },
        },
    ),
    "mixtral": ("mixtral", {**LLAMA, "num_local_experts": 5, "num_experts_per_tok": 2}),
    "mixtral-window": ("mixtral", {**LLAMA, "num_local_experts": 4, "num_experts_per_tok": 3, "sliding_window": 7}),
    "qwen2": ("qwen2", {**LLAMA, "rope_theta": 1e6}),
    "qwen2-tied": ("qwen2", {**LLAMA, "num_key_value_heads": 6, "tie_word_embeddings": True}),
    "qwen2-moe": ("qwen2_moe", QWEN2_MOE),
    "qwen2-moe-share-one": ("qwen2_moe", {**QWEN2_MOE, "norm_topk_prob": True, "num_key_value_heads": 6}),
    "qwen3": ("qwen3", {**LLAMA, "head_dim": 16, "rope_theta": 1e6}),
    "qwen3-moe": ("qwen3_moe", {**QWEN3_MOE, "norm_topk_prob": True}),
    "qwen3-moe-probabilities": ("qwen3_moe", {**QWEN3_MOE, "num_experts_per_tok": 1, "tie_word_embeddings": True}),
    "deepseek-v2": (
        "deepseek_v2",
        {
            **LATENT,
            "first_k_dense_replace": 1,
            "rms_norm_eps": 1e-5,
            "rope_scaling": SHARPER,
        },
    ),
    "deepseek-v2-queries": (
        "deepseek_v2",
        {**LATENT, "q_lora_rank": 28, "n_shared_experts": 1, "routed_scaling_factor": 1.7},
    ),
    "deepseek-v2-groups": (
        "deepseek_v2",
        {
            **LATENT,
            **GROUPS,
            "topk_method": "group_limited_greedy",
            "first_k_dense_replace": 1,
            "rope_scaling": SHARPER,
        },
    ),
    "deepseek-v3": (
        "deepseek_v3",
        {**LATENT, "q_lora_rank": 28, "n_shared_experts": 1, "n_group": 3, "topk_group": 2, "rope_scaling": SHARPER},
    ),
    "moonlight": (
        "deepseek_v3",
        {**LATENT, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1, "routed_scaling_factor": 2.446},
    ),
    "gpt-oss": ("gpt_oss", {**GPT_OSS, "rope_parameters": {**OSS_YARN, "rope_theta": 1.5e5}}),
    "gpt-oss-plain": (
        "gpt_oss",
        {
            **GPT_OSS,
            "num_key_value_heads": 6,
            "attention_bias": False,
            "tie_word_embeddings": True,
            "layer_types": ["full_attention"] * 3,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
        },
    ),
    "granite": ("granite", {**LLAMA, **GRANITE}),
    "granite-biases": (
        "granite",
        {**LLAMA, **GRANITE, "tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True, "rope_theta": 1e7},
    ),
    "smollm3": (
        "smollm3",
        {**LLAMA, "num_hidden_layers": 5, "no_rope_layer_interval": 2, "tie_word_embeddings": False},
    ),
    "smollm3-biases": (
        "smollm3",
        {
            **LLAMA,
            "num_hidden_layers": 4,
            "attention_bias": True,
            "mlp_bias": True,
            "rope_scaling": {"rope_type": "yarn", "factor": 3.0, "original_max_position_embeddings": 8},
        },
    ),
    "olmo2": ("olmo2", {**LLAMA, "rope_theta": 5e5}),
    "olmo2-biases": ("olmo2", {**LLAMA, "num_key_value_heads": 6, "head_dim": 12, "attention_bias": True}),
    "olmo3": (
        "olmo3",
        {
            **LLAMA,
            "num_hidden_layers": 5,
            "sliding_window": 6,
            "rope_parameters": {
                "full_attention": {
                    "rope_type": "yarn",
                    "factor": 3.0,
                    "original_max_position_embeddings": 8,
                    "rope_theta": 5e5,
                },
                "sliding_attention": {"rope_type": "default", "rope_theta": 5e5},
            },
        },
    ),
    "gemma2": ("gemma2", GEMMA),
    "gemma3": (
        "gemma3_text",
        {
            **GEMMA,
            "num_hidden_layers": 4,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
        },
    ),
    "dots1": ("dots1", {**OF_V3, "norm_topk_prob": True, "routed_scaling_factor": 2.5}),
    "dots1-groups": (
        "dots1",
        {**OF_V3, **GROUPS, "first_k_dense_replace": 0, "attention_bias": True, "tie_word_embeddings": True},
    ),
    "glm4-moe": ("glm4_moe", {**OF_V3, "attention_bias": True, "use_qk_norm": True, "n_shared_experts": 2}),
    "glm4-moe-groups": ("glm4_moe", {**OF_V3, **GROUPS, "first_k_dense_replace": 2, "norm_topk_prob": False}),
    "gpt-neox": (
        "gpt_neox",
        {
            **{name: value for name, value in LLAMA.items() if name != "num_key_value_heads"},
            "rotary_pct": 0.5,
            "hidden_act": "gelu",
        },
    ),
    "gpt-neox-sequential": (
        "gpt_neox",
        {
            **{name: value for name, value in LLAMA.items() if name != "num_key_value_heads"},
            "rotary_pct": 0.25,
            "hidden_act": "gelu_new",
            "use_parallel_residual": False,
        },
    ),
}


def main() -> None:
    """Record every model, or compare with what was recorded."""
    exports = Path(sys.argv[2]) if sys.argv[1:2] == ["--check"] else None
    torch.set_grad_enabled(False)
    for name, (family, fields) in MODELS.items():
        described, made = _made(family, fields)
        arrays = computed(made)
        if exports is None:
            text = json.dumps(described, indent=1, sort_keys=True) + "\n"
            (HERE / f"{name}.json").write_text(text, encoding="utf-8")
            tokens, logits, greedy = (arrays[kind] for kind in ("tokens", "logits", "greedy"))
            np.savez_compressed(HERE / f"{name}.npz", tokens=tokens, logits=logits, greedy=greedy)
            print(name, f"logits up to {np.abs(arrays['logits']).max():.2f}")  # noqa: T201  the command's output
        else:
            again, ours = _difference(name, arrays), _difference(name, computed(loaded(exports / name)))
            print(name, f"differs by {again:.1e} from its recording, its export by {ours:.1e}")  # noqa: T201  as above


def _made(family: str, fields: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
    """Return what a recording says of a model, with the shapes of its tensors, and the model."""
    ids = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **fields, **ids))
    gains = 0.0 if family.startswith("gemma") else 1.0  # Gemma's are counted from 1
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        file = Path(folder) / "model.safetensors"
        with safe_open(file, "numpy") as tensors:
            shapes = {name: tensors.get_slice(name).get_shape() for name in tensors.keys()}  # noqa: SIM118  no mapping
        save_file(drawn(shapes, gains), file, {"format": "pt"})
        saved = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
        return {"config": saved, "gains": gains, "shapes": shapes}, loaded(Path(folder))


def loaded(folder: Path) -> Any:
    """Return the model in a folder; none of its tensors may be unknown or missing."""
    options = {"attn_implementation": "eager", "experts_implementation": "eager", "output_loading_info": True}
    model, found = AutoModelForCausalLM.from_pretrained(folder, **options)
    assert not any(found[problem] for problem in ("missing_keys", "unexpected_keys", "mismatched_keys")), found
    return model.eval()


def computed(model: Any) -> dict[str, np.ndarray[Any, Any]]:
    """Return tokens, their logits, and the tokens that greedy generation adds to the first of each row."""
    positions = model.config.max_position_embeddings
    tokens = np.random.default_rng(3).integers(0, model.config.vocab_size, (ROWS, positions)).astype(np.int64)
    logits = model(torch.tensor(tokens)).logits.numpy()
    count = positions - PROMPT
    greedy = model.generate(torch.tensor(tokens[:, :PROMPT]), max_new_tokens=count, do_sample=False).numpy()
    return {"tokens": tokens, "logits": logits, "greedy": greedy}


def _difference(name: str, arrays: Mapping[str, np.ndarray[Any, Any]]) -> float:
    """Return the largest difference of a logit from the recorded one; none may be above rounding."""
    with np.load(HERE / f"{name}.npz") as recorded:
        worst = float(np.abs(recorded["logits"] - arrays["logits"]).max())
        assert worst < FLOAT32_ROUNDING, (name, worst)
        assert (recorded["greedy"] == arrays["greedy"]).all(), name
    return worst


if __name__ == "__main__":
    main()
