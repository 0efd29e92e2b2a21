"""How large presets are: what their authors published, and what the trainer builds."""

from pathlib import Path

import pytest

from shardwise.job.load import load
from shardwise.job.presets import PRESETS, published_vocab_size
from shardwise.job.resolve import resolve
from shardwise.job.sizes import keys_seen_twice, num_parameters, num_parameters_of_a_token
from shardwise.job.spec import Model

QUICKSTART = Path(__file__).parent / "golden" / "quickstart.yaml"
PUBLISHED = {
    "gpt2-small": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "gptj-6b": 6_050_882_784,
    "pythia-410m": 405_334_016,
    "llama2-7b": 6_738_415_616,
    "llama3.1-8b": 8_030_261_248,
    "llama3.2-1b": 1_235_814_400,
    "mistral-7b": 7_241_732_096,
    "phi4-14b": 14_659_507_200,
    "mixtral-8x7b": 46_702_792_704,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-7b": 7_615_616_512,
    "qwen3-0.6b": 596_049_920,
    "qwen3-8b": 8_190_735_360,
    "qwen1.5-moe-a2.7b": 14_315_784_192,
    "qwen3-30b-a3b": 30_532_122_624,
    "gpt-oss-20b": 20_914_757_184,
    "gpt-oss-120b": 116_829_156_672,
    "granite3.3-2b": 2_533_539_840,
    "smollm3-3b": 3_075_098_624,
    "olmo2-1b": 1_484_916_736,
    "olmo2-7b": 7_298_617_344,
    "olmo3-7b": 7_298_011_136,
    "gemma2-2b": 2_614_341_888,
    "gemma3-1b": 999_885_952,
    "deepseek-v2-lite": 15_706_484_224,
    "moonlight-16b-a3b": 15_960_110_208,
    "glm4.5-air": 106_852_251_264,  # and a layer that predicts another token, which is not read
    "dots.llm1": 142_774_381_696,
}
"""The elements of all tensors of the published files, a tied head counted once."""


def model_of(preset: str) -> Model:
    """Return the preset's model, resolved."""
    overrides = [f"training.model={{preset: {preset}}}", "training.data.tokenizer=tokenizer.json"]
    overrides += ["training.mesh.tensor=1"]
    return resolve(load(QUICKSTART, overrides)).spec.training.model


@pytest.mark.parametrize("preset", sorted(PRESETS.keys() - {"tiny"}))
def test_a_preset_has_the_published_number_of_parameters(preset: str) -> None:
    """Every preset of a published model, with the tokens that its authors' tokenizer has."""
    assert num_parameters(model_of(preset), published_vocab_size(preset)) == PUBLISHED[preset]


@pytest.mark.parametrize(
    ("preset", "published", "left_out"),
    [
        ("mixtral-8x7b", 12.9e9, 0),
        ("qwen3-30b-a3b", 3.3e9, 0),
        ("qwen1.5-moe-a2.7b", 2.7e9, 0),
        ("dots.llm1", 14e9, 0),
        # Their authors leave out the token table, which is looked up.
        ("gpt-oss-20b", 3.61e9, 201088 * 2880),
        ("gpt-oss-120b", 5.13e9, 201088 * 2880),
    ],
)
def test_a_token_goes_through_as_many_parameters_as_published(preset: str, published: float, left_out: int) -> None:
    """Of a mixture of experts; the authors tell two digits or three."""
    found = num_parameters_of_a_token(model_of(preset), published_vocab_size(preset)) - left_out
    assert found == pytest.approx(published, rel=0.02)


@pytest.mark.parametrize(("window", "pattern"), [(None, None), (64, None), (16, None), (16, 3), (1, 2), (48, 2)])
def test_keys_are_those_that_the_mask_lets_through(window: int | None, pattern: int | None) -> None:
    """Counted in the masks of all layers; a causal token counts half of its own key, as the formula for GPTs has it."""
    layers, seq_len = 6, 64
    seen = 0
    for layer in range(layers):
        is_local = window is not None and (pattern is None or (layer + 1) % pattern != 0)
        seen += sum(min(at + 1, window or seq_len) if is_local else at + 1 for at in range(seq_len))
    twice = keys_seen_twice(layers, seq_len, window, pattern)
    assert 0 <= 2 * seen / seq_len - twice <= 2 * layers
