"""The attention kernels: what each can take, and which one `auto` means on a platform.

`plain` and `blockwise` take everything. The limits of the others are those of the versions that are locked: JAX's
Pallas splash kernel for TPUs, and cuDNN through `jax.nn.dot_product_attention`.

That function knows the length of a row, not where documents lie in it. cuDNN itself takes packed rows, as lengths and
offsets of [batch, documents], through `jax._src.cudnn.fused_attention_stablehlo` alone, which is private, wants a
Hopper GPU in the process that traces, and has room for a fixed number of documents. A row may have as many as it has
positions, and a table for so many would be the size of a mask. So `auto` takes `blockwise` for documents.
"""

from typing import Literal

from shardwise.job.spec import Model, Training

Kernel = Literal["plain", "blockwise", "splash", "cudnn"]

SPLASH_POSITIONS = 128
"""Splash works on blocks of a multiple of so many positions."""
CUDNN_HEAD_STEP, CUDNN_HEAD_MOST = 8, 128


def kernel_of(training: Training, platform: str) -> Kernel:
    """Return the kernel of a resolved job on this JAX platform."""
    wanted = training.model.attention
    if wanted != "auto":
        return wanted
    fused: Kernel | None = {"tpu": "splash", "gpu": "cudnn"}.get(platform)  # type: ignore[assignment]
    if fused is None or objection(training, fused):
        return "blockwise"
    # cuDNN's has no segments: it would be given a mask of all positions by all positions.
    return "blockwise" if fused == "cudnn" and training.data.attend_across == "document" else fused


def objection(training: Training, kernel: Kernel) -> tuple[str, str, str] | None:
    """Say why a kernel cannot take a resolved job's shapes: the field, given, expected; None if it can."""
    model = training.model
    if kernel not in ("splash", "cudnn"):
        return None
    if kernel == "cudnn":
        return _of_cudnn(training)
    context = training.mesh.context
    step, of_context = SPLASH_POSITIONS, ""
    if context > 1:  # of whose chunks each device has two
        step, of_context = 2 * context * SPLASH_POSITIONS, f" and context {context}"
    expected = f"a multiple of {step} with attention: splash{of_context}"
    return ("model.seqLen", str(model.seq_len), expected) if (model.seq_len or 0) % step else None


def _of_cudnn(training: Training) -> tuple[str, str, str] | None:
    return _of_scores(training.model) or _of_sizes(training)


def _of_scores(model: Model) -> tuple[str, str, str] | None:
    if model.attention_softcap is not None:
        return "model.attentionSoftcap", str(model.attention_softcap), "none with attention: cudnn"
    return ("model.attentionSinks", "true", "false with attention: cudnn") if model.attention_sinks else None


def _of_sizes(training: Training) -> tuple[str, str, str] | None:
    model = training.model
    if training.mesh.context > 1:
        return "mesh.context", str(training.mesh.context), "1 with attention: cudnn, which takes whole sequences"
    if training.precision.compute == "float32":
        return "precision.compute", "float32", "bfloat16 with attention: cudnn"
    if model.latent is not None and model.latent.value_size != model.head_size:
        expected = "values as wide as headSize with attention: cudnn"
        return "model.latent.valueSize", f"{model.latent.value_size} with headSize {model.head_size}", expected
    size = model.head_size or 0
    if size % CUDNN_HEAD_STEP or size > CUDNN_HEAD_MOST:
        expected = f"heads of a multiple of {CUDNN_HEAD_STEP} up to {CUDNN_HEAD_MOST} values with attention: cudnn"
        return "model.heads", f"{model.heads}, which makes heads of {size} values", expected
    return None
