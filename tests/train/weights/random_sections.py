"""Random `model` sections of job files, each from a seed: a published family's values, some of them changed."""

from collections.abc import Callable
from random import Random
from typing import Any

from pydantic.alias_generators import to_camel

from shardwise.job.document import Document
from shardwise.job.load import check
from shardwise.job.presets import PRESETS, ROTARY, SIZES
from shardwise.job.resolve import resolve
from shardwise.protocol.errors import JobError
from shardwise.train.config import GptConfig

Section = dict[str, Any]
Draw = Callable[[Random], Section]
_VOCAB_SIZE = 300
_FAMILIES = (
    "gpt2-small",
    "gptj-6b",
    "pythia-410m",
    "llama3.1-8b",
    "mistral-7b",
    "phi4-14b",
    "mixtral-8x7b",
    "qwen2.5-0.5b",
    "qwen1.5-moe-a2.7b",
    "qwen3-0.6b",
    "qwen3-30b-a3b",
    "gpt-oss-20b",
    "granite3.3-2b",
    "smollm3-3b",
    "olmo2-1b",
    "olmo3-7b",
    "gemma2-2b",
    "gemma3-1b",
    "deepseek-v2-lite",
    "moonlight-16b-a3b",
    "glm4.5-air",
    "dots.llm1",
)
_OF_SIZES = {*SIZES, "latent", "kv_heads", "head_size", "mlp", "rotary_dim", "experts"}
_LOCAL_BASES = (100.0, 2e4)


def random_config(seed: int) -> GptConfig:
    """Return what is built for the first of this seed's sections that a job may have."""
    draw = Random(seed)
    while (config := _config_of(_section(draw))) is None:
        pass
    return config


def _section(draw: Random) -> Section:
    preset = draw.choice(_FAMILIES)
    family = PRESETS[preset]
    left_out = _OF_SIZES if family["position"] == "rotary" else {*_OF_SIZES, *ROTARY}
    section = {to_camel(name): value for name, value in family.items() if name not in left_out}
    changes = [*draw.sample(_OFTEN, draw.randint(0, 2)), *draw.sample(_CHANGES, draw.randint(0, 3))]
    if "experts" in family:
        changes.append(_biased_experts if family["experts"].pick_bias else _experts)
    if "latent" in family:
        changes.append(_deepseek)
    if preset == "phi4-14b":
        changes.append(_phi)
    section |= _sizes(draw) | {key: value for change in changes for key, value in change(draw).items()}
    if "experts" in family and family["experts"].shared_gate:
        section["experts"] |= {"shared": draw.randint(1, 30), "sharedGate": True}
    if "experts" in family and family["experts"].pick_bias and draw.random() < 0.9:  # as those families tell it
        section["experts"] |= {"shared": (section["mlp"] or 4 * section["embed"]) * draw.randint(1, 3)}
    if preset == "gpt-oss-20b":
        kept = {key: value for key, value in section["experts"].items() if not key.startswith("shared")}
        section["experts"] = {**kept, "routerBias": True}
    if section.get("ropeScaling") is None and section.get("localRopeTheta") == section.get("ropeTheta"):
        section["localRopeTheta"] = None  # an export cannot tell it from none
    return section


def _config_of(section: Section) -> GptConfig | None:
    training = {
        "model": {key: value for key, value in section.items() if value is not None},
        "data": {"train": [{"name": "text", "paths": ["text.txt"]}], "tokenizer": "tokenizer.json"},
        "batch": {"sequences": 1},
        "optimizer": {"name": "adamw", "learningRate": 1e-3},
        "steps": 1,
    }
    job = {
        "apiVersion": "shardwise.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": "random"},
        "spec": {"hardware": {"accelerator": "cpu-sim", "topology": "1x1"}, "training": training},
    }
    try:
        checked = check(Document(data=job, places={}))
    except JobError:
        return None
    return GptConfig.of(resolve(checked).spec.training, tokenizer_size=_VOCAB_SIZE, platform="cpu")


def _sizes(draw: Random) -> Section:
    heads = draw.randint(1, 6)
    return {
        "layers": draw.randint(1, 8),
        "heads": heads,
        "embed": draw.choice((heads * draw.randint(1, 12), draw.randint(8, 60))),
        "kvHeads": draw.choice((None, None, None, 1, 2)),
        "headSize": draw.choice((None, None, draw.randint(1, 12))),
        "mlp": draw.choice((None, draw.randint(1, 60))),
        "seqLen": draw.randint(1, 40),
        "vocabSize": draw.choice((None, _VOCAB_SIZE + 7)),
    }


def _one_of(key: str, *values: Any) -> Draw:
    return lambda draw: {key: draw.choice(values)}


def _windows(draw: Random) -> Section:
    window = draw.choice((None, 1, 5, 50))
    if window is None:
        return {"slidingWindow": None, "slidingWindowPattern": None, "localRopeTheta": None}
    pattern, local = draw.choice((None, 2, 3, 6, 9)), draw.choice((None, *_LOCAL_BASES))
    return {"slidingWindow": window, "slidingWindowPattern": pattern, "localRopeTheta": local}


def _scaling(draw: Random) -> Section:
    made: Section = {"factor": draw.choice((1.0, 2.5, 8.0)), "kind": draw.choice(("linear", "llama3", "yarn", None))}
    if made["kind"] is None:
        return {"ropeScaling": None}
    if made["kind"] != "linear" and draw.random() < 0.5:
        made["originalSeqLen"] = draw.randint(1, 40)
    if made["kind"] == "llama3" and draw.random() < 0.5:
        made |= {"lowFrequencyFactor": 0.5, "highFrequencyFactor": 3.0}
    if made["kind"] == "yarn" and draw.random() < 0.5:
        made |= {"betaSlow": 0.5, "betaFast": 20.0, "attentionFactor": 1.5}
    if made["kind"] == "yarn" and draw.random() < 0.5:
        made["truncate"] = False
    return {"ropeScaling": made}


def _phi(draw: Random) -> Section:
    """Return heads that are turned in part, most often with factors of their own for each pair."""
    heads, pairs, apart = draw.randint(1, 6), draw.randint(1, 5), 2 * draw.randint(0, 3)
    made: Section = {"heads": heads, "embed": heads * (2 * pairs + apart), "headSize": None, "rotaryDim": 2 * pairs}
    if draw.random() < 0.3:
        return made
    factors = {name: [draw.uniform(0.5, 9) for _ in range(pairs)] for name in ("shortFactors", "longFactors")}
    scaling: Section = {"kind": "longrope", "factor": draw.choice((1.0, 2.5, 8.0)), **factors}
    if draw.random() < 0.5:
        scaling["originalSeqLen"] = draw.randint(1, 40)
    if draw.random() < 0.5:
        scaling["attentionFactor"] = 1.5
    return {**made, "ropeScaling": scaling}


_OFTEN: tuple[Draw, ...] = (_windows, _scaling)


def _experts(draw: Random) -> Section:
    """Return some without a balance, which is written into a config.json and never read."""
    count = draw.randint(2, 5)
    made: Section = {
        "count": count,
        "perToken": draw.randint(1, count),
        "shareOne": draw.random() < 0.5,
        "balance": 0.0,
    }
    if draw.random() < 0.5:
        made |= {"shared": draw.randint(1, 30), "sharedGate": draw.random() < 0.5}
    elif draw.random() < 0.5:
        made["routerBias"] = True
    if draw.random() < 0.2:
        others: tuple[Section, ...] = (
            {"score": "sigmoid"},
            {"shareFactor": 2.5},
            {"pickBias": True},
            {"groups": count},
            {"denseBlocks": 1, "denseMlp": draw.randint(1, 30)},
        )
        made |= others[draw.randrange(len(others))]
    return {"experts": made}


def _latent(draw: Random) -> Section:
    size = 2 * draw.randint(1, 6)
    latent: Section = {"kvRank": draw.randint(1, 20), "qRank": draw.choice((None, draw.randint(1, 20)))}
    if draw.random() < 0.5:
        latent |= {"valueSize": draw.randint(1, 20)}
    made: Section = {"headSize": size + draw.randint(1, 9), "rotaryDim": size, "kvHeads": None, "latent": latent}
    return {**made, "position": "rotary", "attentionBias": False, "attentionOutBias": None, "qkNorm": False}


def _deepseek(draw: Random) -> Section:
    """Return what all models of DeepSeek-V2, or of V3, say, most often."""
    width = draw.randint(1, 20)
    experts: Section = {**_experts(draw)["experts"], "shareOne": False, "sharedGate": False}
    if draw.random() < 0.5:
        experts = _biased_experts(draw)["experts"]
    elif draw.random() < 0.5:
        experts |= {**_groups(draw), "groupScore": "best"}
    experts["shared"] = 2 * width
    return {**_latent(draw), "rotaryPairs": "interleaved", "mlp": width, "experts": experts}


def _biased_experts(draw: Random) -> Section:
    """Return some of DeepSeek-V3's kind."""
    made = {**_groups(draw), "shareOne": draw.random() < 0.5}
    dense = draw.choice(({}, {"denseBlocks": draw.randint(1, 4), "denseMlp": draw.randint(1, 40)}))
    factor = draw.choice((1.0, 2.5, 3.0))
    return {
        "experts": {
            **made,
            **dense,
            "score": "sigmoid",
            "shareFactor": factor,
            "pickBias": True,
            "balance": 0.0,
        }
    }


def _groups(draw: Random) -> Section:
    groups = draw.choice((1, 1, 2, 3))
    made = {"count": groups * draw.randint(2, 4), "perToken": draw.randint(1, 2)}
    return {**made, "groups": groups, "groupsPerToken": draw.randint(1, groups)}


_CHANGES: tuple[Draw, ...] = (
    _latent,
    _one_of("block", "sequential", "parallel", "parallel-two-norms"),
    _one_of("norm", "layer", "rms", "rms-unit-offset"),
    _one_of("preNorm", True, False),
    _one_of("postNorm", True, False),
    _one_of("qkNorm", True, False),
    _one_of("qkNormOver", "head", "all-heads"),
    _one_of("activation", "gelu", "gelu-exact", "swiglu", "geglu", "swiglu-clamped"),
    _one_of("position", "learned", "rotary"),
    _one_of("rotaryDim", None, 2, 4),
    _one_of("rotaryPairs", None, "interleaved", "half"),
    _one_of("ropeTheta", 5e3, 1e6),
    _one_of("rotaryPattern", None, 1, 2, 3, 9),
    _one_of("tiedHead", True, False),
    _one_of("headBias", True, False),
    _experts,
    _one_of("attentionBias", True, False),
    _one_of("attentionOutBias", None, True, False),
    _one_of("attentionSinks", True, False),
    _one_of("mlpBias", True, False),
    _one_of("queryPreAttnScalar", None, 0.5, 24.0),
    _one_of("attentionSoftcap", None, 2.5),
    _one_of("logitSoftcap", None, 3.0),
    _one_of("scaleEmbedding", True, False),
    _one_of("embeddingFactor", 1.0, 12.0),
    _one_of("residualFactor", 1.0, 0.22),
    _one_of("logitDivisor", 1.0, 3.5),
    _one_of("scaleByInverseLayer", True, False),
    _one_of("normEpsilon", 1e-6, 1e-3),
    _one_of("initStd", 0.02, 1.0),
)
