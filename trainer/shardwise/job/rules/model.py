"""Rules on the model: its sizes are known and fit each other, and its kernel exists where it runs."""

from collections.abc import Iterator

from shardwise.job.accelerators import offered
from shardwise.job.document import wrong
from shardwise.job.kernels import objection
from shardwise.job.presets import SIZES
from shardwise.job.sizes import GATED
from shardwise.job.spec import Model, TrainingJob
from shardwise.job.topology import divisors
from shardwise.protocol.errors import Problem
from shardwise.protocol.text import any_of

_PATH = "spec.training.model"
_WINDOW = "set slidingWindow, the tokens that such a block sees, or take it out"
_NORMS = "without any norm nothing keeps what attention and feed-forward add small; or set preNorm: true"


def sizes_are_known(job: TrainingJob) -> Iterator[Problem]:
    """Require the four sizes where there is no preset."""
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
    """Require that every head has the same whole size."""
    model = job.spec.training.model
    if model.head_size is None and model.heads is not None and model.embed is not None:
        works = [heads for heads in divisors(model.embed) if heads <= 2 * model.heads]
        expected = f"a number that divides embed {model.embed}: {any_of(works)}"
        hint = "or give headSize, for heads that are not embed / heads wide"
        yield wrong(f"{_PATH}.heads", model.heads, expected, hint)


def kv_heads_divide_heads(job: TrainingJob) -> Iterator[Problem]:
    """Require that every head of keys and values is for the same number of query heads."""
    model = job.spec.training.model
    if model.kv_heads is not None and model.heads is not None and model.heads % model.kv_heads:
        expected = f"a number that divides heads {model.heads}: {any_of(divisors(model.heads))}"
        yield wrong(f"{_PATH}.kvHeads", model.kv_heads, expected)


def rotary_dim_fits(job: TrainingJob) -> Iterator[Problem]:
    """Require that rotary positions turn pairs of values inside one head."""
    model = job.spec.training.model
    if model.rotary_dim is None or model.head_size is None or model.position != "rotary":
        return
    if model.rotary_dim == model.head_size and model.head_size % 2:  # most often filled in, so not what is wrong
        yield _odd_heads(model)
    elif model.rotary_dim > model.head_size or model.rotary_dim % 2:
        expected = f"an even number up to the head size {model.head_size} (embed / heads, or headSize)"
        yield wrong(f"{_PATH}.rotaryDim", model.rotary_dim, expected)


def _odd_heads(model: Model) -> Problem:
    size = model.head_size
    if model.embed and model.heads and model.embed == model.heads * (size or 0):
        words = f"heads of an even size for rotary positions, and embed {model.embed} / heads {model.heads} is {size}"
        return wrong(f"{_PATH}.heads", model.heads, words, "or give headSize, an even number")
    return wrong(f"{_PATH}.headSize", size, "an even number for rotary positions")


def windows_have_a_size(job: TrainingJob) -> Iterator[Problem]:
    """Require a sliding window where something is said of blocks with one."""
    model = job.spec.training.model
    of_windows = {"slidingWindowPattern": model.sliding_window_pattern, "localRopeTheta": model.local_rope_theta}
    for name, value in of_windows.items():
        if value is not None and model.sliding_window is None:
            yield wrong(f"{_PATH}.{name}", value, f"no {name} without slidingWindow", _WINDOW)


def only_rotary_positions_have_a_pattern(job: TrainingJob) -> Iterator[Problem]:
    """Require rotary positions where something is said of blocks without them."""
    model = job.spec.training.model
    if model.rotary_pattern is not None and model.position == "learned":
        expected, hint = "no rotaryPattern with position: learned", "set position: rotary, or take it out"
        yield wrong(f"{_PATH}.rotaryPattern", model.rotary_pattern, expected, hint)


def norms_go_together(job: TrainingJob) -> Iterator[Problem]:
    """Require norms after where none is before, and a norm of queries and keys where something is said of it."""
    model = job.spec.training.model
    if model.pre_norm is False and not model.post_norm:
        yield wrong(f"{_PATH}.postNorm", model.post_norm, "true with preNorm: false", _NORMS)
    if model.pre_norm is False and model.block != "sequential":
        yield wrong(f"{_PATH}.block", model.block, "sequential with preNorm: false", "or set preNorm: true")
    if model.qk_norm_over == "all-heads" and not model.qk_norm:
        yield wrong(f"{_PATH}.qkNormOver", model.qk_norm_over, "head without qkNorm", "or set qkNorm: true")


def experts_can_be_computed(job: TrainingJob) -> Iterator[Problem]:
    """Require gated MLPs, their numbers, and no more for a token than there are."""
    model = job.spec.training.model
    if model.experts is None:
        return
    if model.activation not in (None, *GATED):
        yield wrong(f"{_PATH}.activation", model.activation, f"{any_of(GATED)} with experts")
    count, per_token = model.experts.count, model.experts.per_token
    if count is None or per_token is None:
        given = "no count" if count is None else "no perToken"
        expected = "count and perToken, or a preset that has experts"
        yield Problem(path=f"{_PATH}.experts", given=given, expected=expected)
    elif per_token > count:
        yield wrong(f"{_PATH}.experts.perToken", per_token, f"at most the {count} experts that there are")
    if model.experts.shared_gate and not model.experts.shared:
        yield wrong(f"{_PATH}.experts.sharedGate", True, "shared beside it, the width of the MLP whose gate it is")


def latent_attention_can_be_computed(job: TrainingJob) -> Iterator[Problem]:
    """Require the width of the narrow vector, a part of each key that no position turns, and nothing of other kinds."""
    model = job.spec.training.model
    if model.latent is None:
        return
    if model.latent.kv_rank is None:
        expected = "kvRank, or a preset that has latent"
        yield Problem(path=f"{_PATH}.latent", given="no kvRank", expected=expected)
    if model.rotary_dim is not None and model.head_size is not None and model.rotary_dim == model.head_size:
        expected = f"less than headSize {model.head_size} with latent, which makes the rest of a key"
        yield wrong(f"{_PATH}.rotaryDim", model.rotary_dim, expected)
    if model.kv_heads is not None and model.kv_heads != model.heads:
        expected = f"the {model.heads} heads with latent, whose keys and values are of every head"
        yield wrong(f"{_PATH}.kvHeads", model.kv_heads, expected, "leave it out")
    if model.attention_out_bias:
        yield wrong(f"{_PATH}.attentionOutBias", True, "false with latent")


def router_can_choose(job: TrainingJob) -> Iterator[Problem]:
    """Require a bias where something is said of it, and groups of experts that have enough of them."""
    experts, path = job.spec.training.model.experts, f"{_PATH}.experts"
    if experts is None or experts.count is None or experts.groups is None or experts.groups_per_token is None:
        return
    if experts.bias_rate is not None and not experts.pick_bias:
        yield wrong(
            f"{path}.biasRate", experts.bias_rate, "no biasRate without pickBias: true, of which it is the rate"
        )
    if experts.count % experts.groups:
        expected = f"a number that divides count {experts.count}: {any_of(divisors(experts.count))}"
        yield wrong(f"{path}.groups", experts.groups, expected)
        return
    of_one, chosen = experts.count // experts.groups, experts.groups_per_token
    if chosen > experts.groups:
        yield wrong(f"{path}.groupsPerToken", chosen, f"at most the {experts.groups} groups that there are")
    elif experts.groups > 1 and (experts.per_token or 0) > chosen * of_one:
        expected = f"groups that have perToken {experts.per_token} experts together; each has {of_one}"
        yield wrong(f"{path}.groupsPerToken", chosen, expected)
    if experts.groups > 1 and of_one == 1 and experts.group_score == "two-best":
        yield wrong(f"{path}.groupScore", experts.group_score, "best with one expert in each group")


def dense_blocks_have_a_width(job: TrainingJob) -> Iterator[Problem]:
    """Require a width of the first blocks' MLP where there are such blocks, and a mixture after them."""
    model, path = job.spec.training.model, f"{_PATH}.experts"
    layers, experts = model.layers, model.experts
    if experts is None or experts.dense_blocks is None:
        return
    given = experts.dense_blocks
    if given and experts.dense_mlp is None:
        yield Problem(path=f"{path}.denseMlp", given="nothing", expected="the width of the MLP, with denseBlocks")
    if not given and experts.dense_mlp is not None:
        expected = "nothing without denseBlocks, of whose MLP it is the width"
        yield wrong(f"{path}.denseMlp", experts.dense_mlp, expected)
    if layers is not None and given >= layers:
        yield wrong(f"{path}.denseBlocks", given, f"fewer than the {layers} layers, so that one has experts")


def rope_scaling_has_its_fields(job: TrainingJob) -> Iterator[Problem]:
    """Require that each kind of scaling has its own fields, and its upper bound lies above its lower one."""
    scaling, path = job.spec.training.model.rope_scaling, f"{_PATH}.ropeScaling"
    if scaling is None:
        return
    if scaling.kind == "linear" and scaling.original_seq_len is not None:
        expected = "no originalSeqLen with kind: linear"
        yield wrong(f"{path}.originalSeqLen", scaling.original_seq_len, expected)
    if scaling.kind not in ("yarn", "longrope") and scaling.attention_factor is not None:
        expected = f"no attentionFactor with kind: {scaling.kind}"
        yield wrong(f"{path}.attentionFactor", scaling.attention_factor, expected)
    if scaling.kind != "yarn" and not scaling.truncate:
        yield wrong(f"{path}.truncate", False, f"true with kind: {scaling.kind}")
    low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
    if high <= low:
        yield wrong(f"{path}.highFrequencyFactor", high, f"more than {low}, the low one")
    if scaling.beta_fast <= scaling.beta_slow:
        expected = f"more than {scaling.beta_slow}, betaSlow"
        yield wrong(f"{path}.betaFast", scaling.beta_fast, expected)


def each_pair_has_its_factors(job: TrainingJob) -> Iterator[Problem]:
    """Require a factor for each pair that positions turn, for short and for long sequences, with longrope alone."""
    model = job.spec.training.model
    scaling = model.rope_scaling
    if scaling is None or model.rotary_dim is None:
        return
    num_pairs = model.rotary_dim // 2 if scaling.kind == "longrope" else 0
    expected = f"{num_pairs} numbers, half of rotaryDim" if num_pairs else f"none with kind: {scaling.kind}"
    for name, factors in (("shortFactors", scaling.short_factors), ("longFactors", scaling.long_factors)):
        if len(factors) != num_pairs:
            yield wrong(f"{_PATH}.ropeScaling.{name}", len(factors), expected)


def kernel_runs_here(job: TrainingJob) -> Iterator[Problem]:
    """Require that the attention kernel exists on the accelerator."""
    kernel = job.spec.training.model.attention
    accelerator = offered().get(job.spec.hardware.accelerator)
    if accelerator and kernel not in ("auto", *accelerator.spec.kernels):
        expected = f"a kernel of {accelerator.name}: auto, {any_of(accelerator.spec.kernels)}"
        yield wrong(f"{_PATH}.attention", kernel, expected)


def kernel_takes_the_shapes(job: TrainingJob) -> Iterator[Problem]:
    """Require that the kernel that is asked for by name can compute this model."""
    training = job.spec.training
    kernel = training.model.attention
    if kernel != "auto" and (found := objection(training, kernel)):
        field, given, expected = found
        hint = "or set attention: auto, which takes a kernel that can"
        yield Problem(path=f"spec.training.{field}", given=given, expected=expected, hint=hint)


RULES = (
    sizes_are_known,
    heads_divide_embed,
    kv_heads_divide_heads,
    rotary_dim_fits,
    windows_have_a_size,
    only_rotary_positions_have_a_pattern,
    norms_go_together,
    experts_can_be_computed,
    latent_attention_can_be_computed,
    router_can_choose,
    dense_blocks_have_a_width,
    rope_scaling_has_its_fields,
    each_pair_has_its_factors,
    kernel_runs_here,
    kernel_takes_the_shapes,
)
