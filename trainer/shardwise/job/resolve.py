"""Make every field of a job explicit, so that a run records what it does and a later default cannot change it.

Pure and idempotent. What stays None has no value in this job: fields that the optimizer or the position kind does not
have, windows and caps that the model lacks, cadences that are off, a vocabulary that the tokenizer's file decides,
checkpoints in the run's own folder.
"""

from collections.abc import Mapping
from math import log, sqrt
from typing import Any, TypeVar

from shardwise.job.family_values import BIAS_RATE, EXPERTS
from shardwise.job.optimizer_values import OPTIMIZERS
from shardwise.job.presets import (
    BYTE_TOKENIZER,
    BYTE_VOCAB_SIZE,
    CHECKPOINT_EVERY,
    NO_PRESET,
    PRESETS,
    ROTARY,
)
from shardwise.job.quantity import Duration
from shardwise.job.spec import Checkpoint, Experts, Latent, Mesh, Model, Optimizer, RopeScaling, TrainingJob
from shardwise.job.spec.data import Data
from shardwise.job.spec.training import Lora
from shardwise.job.topology import inner_ways, mesh_shape
from shardwise.protocol.strict_model import StrictModel

Section = TypeVar("Section", bound=StrictModel)


def resolve(job: TrainingJob) -> TrainingJob:
    """Return the same job with presets expanded and every default written out."""
    training = job.spec.training_if_any
    if training is None:
        return job
    filled = training.model_copy(
        update={
            "model": _model(training.model, training.data.tokenizer, training.lora),
            "data": _data(training.data),
            "mesh": _mesh(job),
            "optimizer": _optimizer(training.optimizer),
            "lora": training.lora and _lora(training.lora, training.model),
            "checkpoint": _checkpoint(training.checkpoint),
        }
    )
    return job.with_spec(training=filled)


def _data(data: Data) -> Data:
    train = [source if source.epochs else _fill(source, {"weight": 1.0}) for source in data.train]
    return data.model_copy(update={"train": tuple(train)})


def _mesh(job: TrainingJob) -> Mesh:
    mesh = _fill(job.spec.training.mesh, {"replica": job.spec.hardware.slices})
    shape = mesh_shape(job)
    if shape is None:  # a rule reports it
        return mesh
    steps = mesh.fsdp and mesh.expert == 1
    return _fill(mesh, {"data_inner": inner_ways(job.spec.hardware, shape.data) if steps else mesh.expert})


def _model(model: Model, tokenizer: str, lora: Lora | None) -> Model:
    preset = NO_PRESET if model.preset is None else PRESETS[model.preset]
    model = _fill(model, {name: value for name, value in preset.items() if name not in ROTARY})
    if model.embed is not None:
        model = _fill(model, {"mlp": 4 * model.embed})
    if model.embed is not None and model.heads is not None and model.embed % model.heads == 0:
        model = _fill(model, {"head_size": model.embed // model.heads})
    if model.experts is not None:
        model = model.model_copy(update={"experts": _experts(model.experts, preset.get("experts"), lora)})
    scalar = None if model.head_size is None else float(model.head_size)
    beside = {"kv_heads": model.heads, "attention_out_bias": model.attention_bias, "query_pre_attn_scalar": scalar}
    model = _fill(model, beside)
    if model.position == "rotary":
        model = _fill(model, {name: preset[name] for name in ROTARY if name in preset})
        scaling = model.rope_scaling and _rope_scaling(model.rope_scaling, model.seq_len)
        model = _fill(model, {"rotary_dim": model.head_size}).model_copy(update={"rope_scaling": scaling})
    if model.latent is not None:
        model = model.model_copy(update={"latent": _latent(model.latent, preset.get("latent"), model)})
    return _fill(model, {"vocab_size": BYTE_VOCAB_SIZE}) if tokenizer == BYTE_TOKENIZER else model


def _experts(experts: Experts, of_preset: Experts | None, lora: Lora | None) -> Experts:
    unused = {"dense_mlp"} if experts.dense_blocks == 0 else set()
    experts = _fill(experts, {name: value for name, value in of_preset or () if name not in unused})
    experts = _fill(experts, EXPERTS)
    if not experts.pick_bias:
        return experts
    return _fill(experts, {"bias_rate": 0.0 if lora else BIAS_RATE})  # beside adapters no step changes the model


def _latent(latent: Latent, of_preset: Latent | None, model: Model) -> Latent:
    latent = _fill(latent, dict(of_preset or ()))
    apart = (model.head_size or 0) - (model.rotary_dim or 0)
    return _fill(latent, {"norm_epsilon": 1e-6, "value_size": apart if apart > 0 else None})


def _rope_scaling(scaling: RopeScaling, seq_len: int | None) -> RopeScaling:
    if scaling.kind == "linear" or seq_len is None:
        return scaling
    scaling = _fill(scaling, {"original_seq_len": max(1, int(seq_len / scaling.factor))})
    return _fill(scaling, {"attention_factor": attention_factor(scaling)})


def attention_factor(scaling: RopeScaling) -> float | None:
    """Return what the authors of YaRN or LongRoPE multiply queries and keys by; None for the other kinds."""
    if scaling.kind == "yarn":
        return 0.1 * log(scaling.factor) + 1
    if scaling.kind != "longrope":
        return None
    assert scaling.original_seq_len is not None, "it is filled in before"
    has_gain = scaling.factor > 1 and scaling.original_seq_len > 1
    return sqrt(1 + log(scaling.factor) / log(scaling.original_seq_len)) if has_gain else 1.0


def _optimizer(optimizer: Optimizer) -> Optimizer:
    optimizer = _fill(optimizer, OPTIMIZERS[optimizer.name])
    if optimizer.name == "muon":
        return _fill(optimizer, {"adam_learning_rate": optimizer.learning_rate})
    return optimizer


def _lora(lora: Lora, model: Model) -> Lora:
    preset = NO_PRESET if model.preset is None else PRESETS[model.preset]
    has_experts = model.experts is not None or "experts" in preset
    return _fill(lora, {"alpha": 2.0 * lora.rank, "mlp": not has_experts})


def _checkpoint(checkpoint: Checkpoint) -> Checkpoint:
    return checkpoint if checkpoint.every_steps else _fill(checkpoint, {"every": Duration(CHECKPOINT_EVERY)})


def _fill(section: Section, values: Mapping[str, Any]) -> Section:
    """Set the fields of `section` that are None."""
    return section.model_copy(update={name: value for name, value in values.items() if getattr(section, name) is None})
