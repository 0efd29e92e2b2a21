"""Low-rank adapters: what they compute, that nothing else moves or is saved, and that no mesh changes it."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import haliax as hax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.train.conftest import SMALL, run_here, runs_here
from tests.train.grids import layout_over
from tests.train.test_experts import MIXTURE
from tests.train.test_meshes import LATENT, LLAMA, batch_of
from tests.train.test_origin import folder, losses, params

from shardwise.cli.saved_model import exported_parameters, load_model
from shardwise.job.adapter_sizes import adapter_parameters
from shardwise.job.load import loads
from shardwise.job.resolve import resolve
from shardwise.job.spec import TrainingJob
from shardwise.plan.flops import traced_flops
from shardwise.protocol.contract import ExitCode
from shardwise.protocol.errors import CheckpointError, JobError, RunDirectoryError
from shardwise.train.checkpoint import read_manifest, steps
from shardwise.train.config import GptConfig
from shardwise.train.flops import flops_per_token
from shardwise.train.linear import Adapter, Linear
from shardwise.train.lora import is_adapter, merged
from shardwise.train.state import BASE, Program, State, parameters
from shardwise.train.step import lower_evaluation, lower_step, trace_step

MakeProgram = Callable[..., Program]
LORA = ("lora.rank=4", "startFrom={path: base, step: 0}", "optimizer.learningRate=1e-2")
CONSTANT = "training.optimizer.schedule.kind=constant"
MESHES = {
    "fsdp 2 x tensor 4": (8, ("mesh.tensor=4",)),
    "data 2 x tensor 2, no fsdp, 3 microbatches": (4, ("mesh.tensor=2", "mesh.fsdp=false", "batch.microbatches=3")),
    "replica 2 x fsdp 2 x tensor 2, 2 microbatches": (8, ("mesh.tensor=2", "mesh.replica=2", "batch.microbatches=2")),
    "fsdp 2 x context 2 x tensor 2": (8, ("mesh.tensor=2", "mesh.context=2")),
    "fsdp 2 x pipeline 3": (6, ("mesh.pipeline=3", "batch.microbatches=3")),
}


@pytest.mark.long  # tests/train/test_expert_adapters.py has adapters on meshes
@pytest.mark.parametrize(
    "words",
    [(), LLAMA, LATENT],
    ids=["gpt2", "llama", "latent"],
)
def test_losses_do_not_depend_on_the_mesh(make_program: MakeProgram, words: tuple[str, ...]) -> None:
    """Over 10 float32 steps every mesh gives the losses of one device, which fall."""
    words = (*LORA, *words, "batch.sequences=24")
    _, one = _train(make_program(*words, num_devices=1))
    assert one[-1] < one[0] - 0.05

    for name, (devices, more) in MESHES.items():
        _, many = _train(make_program(*words, *more, num_devices=devices))
        np.testing.assert_allclose(many, one, rtol=1e-5, atol=0, err_msg=name)


def test_the_scale_is_that_of_merged_weights_in_bfloat16() -> None:
    """Rounded to bfloat16, 20 / 48 would be 0.16 % less, in every token and every layer."""
    In, Rank, Out = hax.make_axes(embed=1024, rank=1024, mlp=1024)
    eye = np.eye(1024, dtype=np.float32)
    a, b = hax.named(eye, (In, Rank)), hax.named(eye, (Rank, Out))
    adapter = Adapter(20 / 48, Linear(In, Rank, a, None), Linear(Rank, Out, b, None))
    x = hax.named(np.linspace(1, 2, 1024, dtype=np.float32).reshape(1, 1, 1024), ("batch", "position", In))
    layout = layout_over(dtype=jnp.dtype(jnp.bfloat16))
    with jax.set_mesh(layout.mesh):
        out = jax.jit(lambda x: adapter(x, layout, layout.put).array)(x.astype(jnp.bfloat16))

    assert float(out.astype(jnp.float32).mean()) == pytest.approx(1.5 * 20 / 48, rel=3e-4)


def test_a_mixture_has_adapters_of_attention_alone(make_program: MakeProgram) -> None:
    """Also where its experts are split over devices: the losses are those of one device."""
    words = (*LORA, *MIXTURE)
    one = make_program(*words, num_devices=1)
    assert {path.split(".")[1] for path in one.trained} == {"attention"}
    _, expected = _train(one, 4)
    _, split = _train(make_program(*words, "mesh.expert=4"), 4)
    np.testing.assert_allclose(split, expected, rtol=1e-5, atol=0)


def test_a_mixture_of_two_kinds_of_blocks_has_adapters_in_both(make_program: MakeProgram) -> None:
    """Drawn apart; the bias of the choice stays as it is, with the other weights."""
    words = (*LORA, *MIXTURE, "model.layers=3", "model.experts.pickBias=true")
    program = make_program(*words, "model.experts.denseBlocks=1", "model.experts.denseMlp=48", num_devices=1)
    state = jax.eval_shape(program.init)
    of_blocks, of_first = (
        [path.removeprefix("dense_") for path in program.trained if path.startswith(stack)]
        for stack in ("blocks.", "dense_blocks.")
    )
    assert of_first == of_blocks
    assert state[BASE]["blocks.mlp.pick_bias"].dtype == jnp.float32
    drawn = program.lower_init().compile()()["params"]
    a = "blocks.attention.out.adapter.a.weight"
    assert not np.isin(drawn[a], drawn[f"dense_{a}"]).any()


def test_only_adapters_move(make_program: MakeProgram) -> None:
    """The model begins as it was; the optimizer knows adapters alone; in 16 bits only matrices are kept in fewer."""
    program = make_program(*LORA, "precision.compute=bfloat16", "mesh.tensor=2")
    state, (first, *_) = _train(program)
    plain = make_program("precision.compute=bfloat16", "mesh.tensor=2")
    before = plain.lower_init().compile()()
    whole = lower_evaluation(plain).compile()(before["params"], batch_of(plain, 0))
    assert first == pytest.approx(float(whole.cross_entropy / whole.weight), rel=1e-4)

    assert all(is_adapter(path) for path in state["params"])
    moments = {
        path[-1].key for path, _ in jax.tree_util.tree_leaves_with_path(state["optimizer"]) if "key" in dir(path[-1])
    }
    assert moments == state["params"].keys()
    assert {x.dtype.name for path, x in state[BASE].items() if path.endswith(("norm.weight", "bias"))} == {"float32"}
    assert {state[BASE][path].dtype.name for path in ("token_embedding", "blocks.mlp.up.weight")} == {"bfloat16"}
    for path, x in state[BASE].items():
        np.testing.assert_array_equal(x, before["params"][path].astype(x.dtype), err_msg=path)


def test_a_group_of_weights_that_stay_is_refused(make_program: MakeProgram) -> None:
    """They are parameters of this model, which none of `*typo*` is, and are not trained; adapters are listed."""
    with pytest.raises(JobError, match=r"groups\.0\.match: .*norm.* a parameter that is trained; .*adapter\.a"):
        make_program(*LORA, "optimizer.groups=[{match: '*norm*', rateFactor: 2}]", num_devices=1)
    with pytest.raises(JobError, match=r"groups\.0\.match: .*typo.* a parameter of this model; "):
        make_program(*LORA, "optimizer.groups=[{match: '*typo*', rateFactor: 2}]", num_devices=1)


def test_gradients_of_what_stays_are_not_computed(make_program: MakeProgram) -> None:
    """On two devices of FSDP the program scatters gradients of the factors that FSDP splits, and of nothing else."""
    program = make_program(*LORA, num_devices=2)
    compiled = lower_step(program).compile()
    split = [path for path, axes in program.trained.items() if "embed" in axes]

    text = compiled.as_text()
    assert text is not None
    assert 0 < text.count(" reduce-scatter(") <= len(split)


@pytest.mark.parametrize("words", [(), LLAMA, LATENT], ids=["gpt2", "llama", "latent"])
def test_arithmetic_of_adapters_is_that_of_the_trace(make_program: MakeProgram, words: tuple[str, ...]) -> None:
    """The formula counts 4 for a parameter that stays, 6 for one of an adapter, and attention as always.

    The trace has besides it what the mask leaves out, of which it knows nothing, and lacks the gradient of the input of
    the first products, which is none that anything needs.
    """
    program = make_program(*LORA, *words, "model.remat=none", "model.layers=8", num_devices=1)
    config, training = program.config, program.training
    tokens = training.batch.sequences * config.seq_len
    masked = 3 * config.num_layers * config.num_heads * (config.head_size + config.value_size) * config.seq_len
    counted = traced_flops(trace_step(program), program.layout.mesh.shape) / tokens - masked
    padding = 4 * config.embed_size * (config.Vocab.size - config.vocab_size)

    held = sum(x.size for x in program.abstract()["params"].values())
    assert adapter_parameters(training.model, training.lora) == held
    assert counted - padding == pytest.approx(flops_per_token(config, training), rel=0.02)
    assert counted < 0.9 * flops_per_token(config, training.model_copy(update={"lora": None}))


def test_adapters_are_added_to_the_weights(make_program: MakeProgram) -> None:
    """A model without adapters, whose weights are these with what the adapters add, has the same loss."""
    program = make_program(*LORA, *LLAMA, "mesh.tensor=2")
    state, _ = _train(program)
    plain = make_program(*LLAMA, "mesh.tensor=2")
    lora = program.training.lora
    assert lora is not None
    weights = jax.device_put(merged(state[BASE], state["params"], program.names, lora), plain.shardings()["params"])
    with_adapters = lower_evaluation(program).compile()(parameters(state), batch_of(program, 99))
    without = lower_evaluation(plain).compile()(weights, batch_of(plain, 99))

    assert float(with_adapters.cross_entropy) == pytest.approx(float(without.cross_entropy), rel=1e-6)
    assert any(not np.array_equal(weights[path], state[BASE][path]) for path in weights)


# ---- runs


@pytest.fixture(scope="module")
def begun(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[Path, list[str]]]:
    """A run of whole weights with checkpoints 2 and 4, and the words of one that trains adapters for the last."""
    path = tmp_path_factory.mktemp("lora")
    text = path / "text.txt"
    text.write_text("all work and no play " * 2000)
    words = ["training.model.layers=1", f"training.data.train.0.paths=[{text}]", "training.steps=4"]
    words += ["training.checkpoint.everySteps=2", "training.evaluation.everySteps=2"]
    words += [f"training.evaluation.sets=[{{name: same, paths: [{text}]}}]"]
    with runs_here(path):
        assert run_here(folder(path, "base"), *words) == ExitCode.OK
        yield path, [*words, f"training.startFrom={{path: {path / 'base'}, step: 4}}", "training.lora.rank=2"]


def test_a_run_saves_its_adapters_and_goes_on_from_them(begun: tuple[Path, list[str]]) -> None:
    """A run that stopped at half goes on to the same bits, and no checkpoint holds a weight of the model."""
    path, words = begun
    whole, half = folder(path, "whole"), folder(path, "half")
    assert run_here(whole, *words) == ExitCode.OK
    assert run_here(half, *words, "training.steps=2", CONSTANT) == ExitCode.OK
    once = folder(path, "once")
    assert run_here(once, *words, CONSTANT) == ExitCode.OK
    assert run_here(half, *words, CONSTANT) == ExitCode.OK

    held = read_manifest(str(whole / "checkpoints"), 4).arrays
    assert all(is_adapter(name) for name in held if name.startswith("params."))
    assert not any(name.startswith(BASE) for name in held)
    assert sum(np.prod(entry.shape) for entry in held.values()) < 0.5 * sum(
        x.size for x in params(path / "base", 4).values()
    )
    assert losses(whole)[1] < losses(path / "base")[1] - 0.1
    assert all(np.array_equal(x, params(once, 4)[name]) for name, x in params(half, 4).items())
    assert {step: losses(half)[step] for step in (3, 4)} == {step: losses(once)[step] for step in (3, 4)}


def test_a_saved_model_has_its_adapters_added(begun: tuple[Path, list[str]]) -> None:
    """What evaluate, generate and export read has the held-out loss that the run had; the adapters are no model."""
    path, words = begun
    run = folder(path, "tuned")
    assert run_here(run, *words) == ExitCode.OK
    job = resolve(loads(SMALL, words))
    model = load_model(job, str(run / "checkpoints"), step=None, report=lambda *_: None)
    base = {name.removeprefix("params."): x for name, x in params(path / "base", 4).items()}

    assert model.step == 4
    assert model.params.keys() == base.keys()
    changed = {name for name, x in model.params.items() if not np.array_equal(x, base[name])}
    assert changed == {f"blocks.{name}.weight" for name in ("attention.qkv", "attention.out", "mlp.up", "mlp.down")}
    for name, x in _exported(job, run, 4).items():
        np.testing.assert_allclose(model.params[name], x, rtol=1e-6, atol=1e-7, err_msg=name)


def _exported(job: TrainingJob, run: Path, step: int, dtype: str | None = None) -> dict[str, np.ndarray]:
    """Return what `shardwise export` writes of a checkpoint."""
    config = GptConfig.of(job.spec.training, tokenizer_size=256, platform="cpu")
    return dict(exported_parameters(job, config, str(run / "checkpoints"), step, dtype))


def test_a_saved_model_is_of_the_weights_that_it_was_trained_beside(begun: tuple[Path, list[str]]) -> None:
    """With other weights at the same path, or another alpha, it would be another model: what differs is named."""
    path, words = begun
    run = folder(path, "beside")
    shutil.copytree(path / "base", path / "place")
    words = [word.replace("/base", "/place") for word in words]
    assert run_here(run, *words) == ExitCode.OK
    other = folder(path, "other")
    assert run_here(other, *words[:-2], "training.seed=5") == ExitCode.OK
    job = resolve(loads(SMALL, words))
    alpha = resolve(loads(SMALL, [*words, "training.lora.alpha=3"]))

    def refused(job: TrainingJob, why: str) -> None:
        with pytest.raises(CheckpointError, match=why):
            load_model(job, str(run / "checkpoints"), step=4, report=lambda *_: None)
        with pytest.raises(CheckpointError, match=why):
            _exported(job, run, 4)

    refused(alpha, r"spec.training.lora.alpha: was 4.*, is now 3.*training.startFrom")
    shutil.rmtree(path / "place")
    refused(job, "It is what training.startFrom names")
    shutil.copytree(other, path / "place")
    refused(job, r"baseFingerprint: was .*, is now ")


def test_a_whole_model_among_adapters_is_itself(begun: tuple[Path, list[str]]) -> None:
    """A checkpoint of the run that was forked is its own model, and not the one that the adapters are for."""
    path, words = begun
    run = folder(path, "forked")
    assert run_here(run, *words[:-2], "training.seed=5") == ExitCode.OK
    assert run_here(run, *words, "training.steps=6", fork=True, step=4) == ExitCode.OK
    job = resolve(loads(SMALL, words))
    own = {name.removeprefix("params."): x for name, x in params(run, 4).items()}
    loaded = load_model(job, str(run / "checkpoints"), step=4, report=lambda *_: None).params

    assert loaded.keys() == own.keys()
    exported = _exported(job, run, 4)
    assert all(np.array_equal(loaded[name], x) and np.array_equal(exported[name], x) for name, x in own.items())
    assert not np.array_equal(_exported(job, run, 6)["blocks.mlp.up.weight"], own["blocks.mlp.up.weight"])


def test_what_is_added_is_not_rounded_to_what_adapters_are_kept_in(begun: tuple[Path, list[str]]) -> None:
    """The model that is evaluated has the weights as they are, as has an export in float32."""
    path, words = begun
    base = folder(path, "rounded")
    half = ("training.precision.params=bfloat16", "training.optimizer.learningRate=1e-5")
    assert run_here(base, *words[:-2], *half) == ExitCode.OK
    words = [word.replace("/base", "/rounded") for word in words]
    run = folder(path, "beside rounded")
    assert run_here(run, *words, *half) == ExitCode.OK
    job = resolve(loads(SMALL, [*words, *half]))
    model, exported = load_model(job, str(run / "checkpoints"), step=4, report=lambda *_: None), _exported(job, run, 4)
    exact = _exported(job, run, 4, "float32")

    name = "blocks.mlp.up.weight"
    assert exported[name].dtype == jnp.bfloat16
    assert exact[name].dtype == model.params[name].dtype == np.float32
    np.testing.assert_allclose(exact[name], model.params[name], rtol=1e-6, atol=1e-9)
    held = np.asarray(params(base, 4)[f"params.{name}"], np.float32)
    moved = exact[name] != held
    assert moved.mean() > 0.9
    assert not np.array_equal(exact[name], exported[name].astype(np.float32))


def test_other_weights_are_another_run(begun: tuple[Path, list[str]]) -> None:
    """Adapters are for the weights that they were trained beside: with others a run does not go on."""
    path, words = begun
    run = folder(path, "moved")
    assert run_here(run, *words, "training.steps=2", CONSTANT) == ExitCode.OK
    shutil.copytree(path / "base", path / "same")
    moved = [word.replace("/base", "/same") for word in words]
    assert run_here(run, *moved, "training.steps=3", CONSTANT) == ExitCode.OK  # they may lie elsewhere

    with pytest.raises(RunDirectoryError, match=r"baseFingerprint: was .*, is now "):
        run_here(run, *[word.replace("step: 4", "step: 2") for word in words], CONSTANT)


def test_weights_that_are_not_there(begun: tuple[Path, list[str]]) -> None:
    """The error names the field that leads to them; nothing is trained."""
    path, words = begun
    run = folder(path, "nowhere")
    with pytest.raises(CheckpointError, match=r"step-00000003: .* is what training\.startFrom names"):
        run_here(run, *[word.replace("step: 4", "step: 3") for word in words])
    assert steps(str(run / "checkpoints")) == []


def test_adapters_have_no_adapters(begun: tuple[Path, list[str]]) -> None:
    """A run of another kind that begins from the checkpoint of adapters is told how to make a model of them."""
    path, words = begun
    run = folder(path, "first")
    assert run_here(run, *words) == ExitCode.OK

    with pytest.raises(CheckpointError, match=r"step 4 holds adapters, expected the weights of a model"):
        run_here(run, *words[:-2], fork=True)
    with pytest.raises(CheckpointError, match=r"step 4 holds adapters, expected the weights of a model"):
        run_here(folder(path, "second"), *[word.replace("/base", "/first") for word in words])


@pytest.fixture(scope="module")
def mixed(begun: tuple[Path, list[str]]) -> tuple[Path, list[str], list[str]]:
    """A directory with weights 2 and 4 and adapters 6; the words without adapters, and those of the run that has them.

    Imported weights, beside which adapters are trained in the same directory, lie like this.
    """
    path, words = begun
    mixed = path / "mixed"
    shutil.copytree(path / "base", mixed)
    words = [*words[:-2], "training.steps=6"]
    tuned = [*words, f"training.startFrom={{path: {mixed}, step: 4}}", "training.lora.rank=2"]
    assert run_here(mixed, *tuned, fork=True) == ExitCode.OK
    assert steps(str(mixed / "checkpoints")) == [2, 4, 6]
    return mixed, words, tuned


@pytest.mark.parametrize("restore", ["weights", "all"])
def test_the_newest_of_a_directory_may_be_adapters(mixed: tuple[Path, list[str], list[str]], restore: str) -> None:
    """A run that begins from the newest is told that these are no model, and does not begin from what was before."""
    directory, words, _ = mixed
    later = folder(directory.parent, f"later-{restore}")
    begin = f"training.startFrom={{path: {directory}, restore: {restore}}}"
    with pytest.raises(CheckpointError, match=r"step 6 holds adapters, expected the weights of a model"):
        run_here(later, *words, begin)
    assert steps(str(later / "checkpoints")) == []


def test_a_fork_goes_back_from_adapters_to_weights(mixed: tuple[Path, list[str], list[str]]) -> None:
    """All weights are trained on from the step that is asked for, whatever the newest one holds."""
    directory, words, _ = mixed
    run = directory.parent / "back"
    shutil.copytree(directory, run)
    assert run_here(run, *words, fork=True, step=4) == ExitCode.OK

    assert sorted(losses(run))[-2:] == [5, 6]
    assert params(run, 6).keys() == params(run, 4).keys()


def test_a_fork_keeps_the_weights_that_adapters_are_for(mixed: tuple[Path, list[str], list[str]]) -> None:
    """A run does not go back to before them in the directory where they lie: it would replace them by its adapters."""
    directory, _, tuned = mixed
    run = directory.parent / "before"
    shutil.copytree(directory, run)
    words = [word.replace("/mixed", "/before") for word in tuned]
    with pytest.raises(CheckpointError, match=r"given step 4 of .*before/checkpoints.*--step 2.*--step 4, or .*--dir"):
        run_here(run, *words, fork=True, step=2)
    assert steps(str(run / "checkpoints")) == [2, 4, 6]

    assert run_here(run, *words, fork=True, step=4) == ExitCode.OK  # not from adapters to other ones, but anew
    assert all(is_adapter(name.removeprefix("params.")) for name in params(run, 6))


def _train(program: Program, num_steps: int = 10) -> tuple[State, list[float]]:
    """The state after some steps from the job's seed, of drawn weights and adapters, and the losses."""
    with program.lowering():
        options = program.compiler_options(runs_once=True)
        state = jax.jit(program.init, out_shardings=program.shardings(), compiler_options=options).lower().compile()()
    compiled = lower_step(program).compile()
    controls = jax.device_put(np.zeros(program.layout.mesh.size, np.int32), program.layout.control)
    losses = []
    for step in range(num_steps):
        state, metrics = compiled(state, batch_of(program, step), controls)
        losses.append(float(metrics.loss))
    return state, losses
