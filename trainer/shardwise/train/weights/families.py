"""The published families that can be imported and exported."""

from shardwise.train.config import GptConfig
from shardwise.train.weights.biased_mixture_families import DOTS1, GLM4_MOE
from shardwise.train.weights.deepseek_families import DEEPSEEK_V2, DEEPSEEK_V3
from shardwise.train.weights.family import Family, differences
from shardwise.train.weights.gpt_families import GPT2, GPTJ, NEOX
from shardwise.train.weights.gpt_oss_family import GPT_OSS
from shardwise.train.weights.llama_families import GRANITE, LLAMA, MISTRAL, PHI3, QWEN2, QWEN3, SMOLLM3
from shardwise.train.weights.mixture_families import MIXTRAL, QWEN2_MOE, QWEN3_MOE
from shardwise.train.weights.post_norm_families import GEMMA2, GEMMA3, OLMO2, OLMO3

FAMILIES: tuple[Family, ...] = (
    GPT2,
    GPTJ,
    NEOX,
    LLAMA,
    MISTRAL,
    PHI3,
    MIXTRAL,
    QWEN2,
    QWEN2_MOE,
    QWEN3,
    QWEN3_MOE,
    DEEPSEEK_V2,
    DEEPSEEK_V3,
    GPT_OSS,
    SMOLLM3,
    GRANITE,
    OLMO2,
    OLMO3,
    GEMMA2,
    GEMMA3,
    DOTS1,
    GLM4_MOE,
)


def family_of(config: GptConfig) -> Family | None:
    """Return the first family whose choices the model makes."""
    return next((family for family in FAMILIES if not differences(family, config)), None)
