"""Rules on the model: its sizes are known and fit each other, and its kernel exists where it runs."""

from collections.abc import Iterator

from shardwise.job.accelerators import offered
from shardwise.job.document import wrong
from shardwise.job.kernels import objection
from shardwise.job.presets import SIZES
from shardwise.job.spec import Model, TrainingJob
from shardwise.job.topology import divisors
from shardwise.protocol.errors import Problem
from shardwise.protocol.text import any_of

_PATH = "spec.training.model"


def sizes_are_known(job: TrainingJob) -> Iterator[Problem]:
    """Without a preset the four sizes are written out."""
    model = job.spec.training.model
    missing = [
        str(info.alias) for name, info in Model.model_fields.items() if name in SIZES and getattr(model, name) is None
    ]
    if missing:
        yield Problem(
            path=_PATH,
            given=f"neither a preset nor {', '.join(missing)}",
            expected="a preset, or layers, heads, embed and seqLen",
            hint="for a small model write preset: tiny",
        )


def heads_divide_embed(job: TrainingJob) -> Iterator[Problem]:
    """Every head has the same whole size."""
    model = job.spec.training.model
    if model.heads is not None and model.embed is not None and model.embed % model.heads:
        works = [heads for heads in divisors(model.embed) if heads <= 2 * model.heads]
        yield wrong(f"{_PATH}.heads", model.heads, f"a number that divides embed {model.embed}: {any_of(works)}")


def rotary_dim_fits(job: TrainingJob) -> Iterator[Problem]:
    """Rotary positions turn pairs of values inside one head."""
    model = job.spec.training.model
    if model.rotary_dim is None or model.heads is None or model.embed is None or model.embed % model.heads:
        return
    head_size = model.embed // model.heads
    if model.position == "rotary" and (model.rotary_dim > head_size or model.rotary_dim % 2):
        expected = f"an even number up to the head size {head_size} (embed / heads)"
        yield wrong(f"{_PATH}.rotaryDim", model.rotary_dim, expected)


def kernel_runs_here(job: TrainingJob) -> Iterator[Problem]:
    """The attention kernel exists on the accelerator."""
    kernel = job.spec.training.model.attention
    accelerator = offered().get(job.spec.hardware.accelerator)
    if accelerator and kernel not in ("auto", *accelerator.spec.kernels):
        expected = f"a kernel of {accelerator.name}: auto, {any_of(accelerator.spec.kernels)}"
        yield wrong(f"{_PATH}.attention", kernel, expected)


def kernel_takes_the_shapes(job: TrainingJob) -> Iterator[Problem]:
    """The kernel that is asked for by name can compute this model."""
    training = job.spec.training
    kernel = training.model.attention
    if kernel != "auto" and (found := objection(training, kernel)):
        field, given, expected = found
        hint = "or set attention: auto, which takes a kernel that can"
        yield Problem(path=f"spec.training.{field}", given=given, expected=expected, hint=hint)


RULES = (
    sizes_are_known,
    heads_divide_embed,
    rotary_dim_fits,
    kernel_runs_here,
    kernel_takes_the_shapes,
)
