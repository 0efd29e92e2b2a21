"""The training state: what it holds, how it is laid out, how it is made from a seed without ever being whole anywhere.

A state is {"step", "params", "optimizer"}, and of some runs also {"average"}, a mean of the weights over the steps, and
{"base"}: weights that stay, which no checkpoint holds. Outside of a program it is a flat dict {dotted path: array}.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import jmp
from jax.sharding import NamedSharding

from shardwise.job.flags import Value, options
from shardwise.job.spec import Training
from shardwise.train.average import Mean
from shardwise.train.balance import LOADS, PICK_BIAS, by_gradient
from shardwise.train.config import GptConfig
from shardwise.train.experts import counting
from shardwise.train.host_memory import on_host, on_hosts, put_back
from shardwise.train.jax_private import with_own_channels
from shardwise.train.layout import Layout, assemble, axis_names, flatten
from shardwise.train.lora import dtype_of_base, initial, is_adapter, without_adapters
from shardwise.train.model import Gpt
from shardwise.train.optimizer import Names, UpdateRule, is_moment_of, optimizer

T = TypeVar("T")
Array = jax.Array
State = dict[str, Any]
Abstract = jax.ShapeDtypeStruct
AVERAGE, BASE = "average", "base"
# Goes before the path of a weight that is there twice: as it is trained, and as it was.
REFERENCE = "reference."
# With all of its optimizations XLA's compiler for CPUs takes two to five times as long.
COMPILED_QUICKLY: dict[str, Value] = {"xla_backend_optimization_level": "1", "xla_cpu_use_fusion_emitters": False}


@dataclass(frozen=True, kw_only=True)
class Program:
    """What the compiled programs of one job share; made once, before anything is compiled."""

    config: GptConfig
    layout: Layout
    template: Gpt
    names: Names
    """Of all parameters; of those that are there twice, the second ones begin with `REFERENCE`."""
    trained: Names
    """Of the parameters that steps change: the model's, or those of adapters."""
    rule: UpdateRule
    policy: jmp.Policy
    training: Training
    xla_options: Mapping[str, Value]
    """The compiler options of every program: the accelerator's and the job's."""

    @classmethod
    def of(cls, training: Training, layout: Layout, config: GptConfig, flags: Iterable[str] = ()) -> Self:
        """Return the program of a resolved job; `config` is of its model and tokenizer, `flags` are XLA's."""
        key = jax.eval_shape(jax.random.key, 0)  # making a real key would compile three programs
        template = eqx.filter_eval_shape(initial, config, training.lora, key=key)
        names = axis_names(template)
        trained = {path: axes for path, axes in names.items() if training.lora is None or is_adapter(path)}
        names = _with_copies(training, names)
        precision = training.precision
        policy = jmp.Policy(*(jnp.dtype(name) for name in (precision.params, precision.compute, precision.output)))
        updated = by_gradient(trained)
        fixed = names.keys() - updated.keys()
        rule = optimizer(training.optimizer, updated, training.steps, params=precision.params, fixed=fixed)
        return cls(
            config=config,
            layout=layout,
            template=template,
            names=names,
            trained=trained,
            rule=rule,
            policy=policy,
            training=training,
            xla_options=options(flags),
        )

    def of_text(self) -> Self:
        """Return the program of the same model whose loss is that of text; it has no copies to compare with."""
        of_text = {"data": self.training.data.as_text(), "reinforcement": None}
        return replace(self, training=self.training.model_copy(update=of_text), names=without_copies(self.names))

    def model(self, params: Mapping[str, Array]) -> Gpt:
        """Return the model with these parameters, and with zeros for its loads if they are there."""
        model = assemble(self.template, params)
        return counting(model, params[LOADS]) if LOADS in params else model

    def reference(self, params: Mapping[str, Array]) -> Gpt:
        """Return the model that preferences are compared with: without adapters, or with the weights that it had."""
        if self.training.lora:
            return without_adapters(self.model(params))
        return assemble(self.template, {path: params[REFERENCE + path] for path in self.trained})

    def init(self) -> State:
        """Return the state at step 0, from the job's seed. Call it inside of jit only (`lower_init`)."""
        model = initial(self.config, self.training.lora, key=jax.random.key(self.training.seed))
        base, weights = self.split(_with_copies(self.training, flatten(model)))
        params = {path: x.astype(self.kept_dtype(path)) for path, x in weights.items()}
        state: State = {"step": jnp.int32(0), "params": params, "optimizer": self.rule.init(by_gradient(weights))}
        if self.training.optimizer.average:
            state[AVERAGE] = Mean.of_none(weights)
        return state | {BASE: {path: x.astype(self._base_dtype(path)) for path, x in base.items()}} if base else state

    def split(self, params: Mapping[str, T]) -> tuple[dict[str, T], dict[str, T]]:
        """Return those of a model's parameters that stay as they are, and those that are trained."""
        base = {path: x for path, x in params.items() if path not in self.trained}
        return base, {path: x for path, x in params.items() if path in self.trained}

    @property
    def bias_rate(self) -> float:
        """By how much a step moves a bias of the choice of experts."""
        experts = self.training.model.experts
        return (experts and experts.bias_rate) or 0.0

    def kept_dtype(self, path: str) -> jnp.dtype:
        """Return the dtype in which a parameter that steps change is kept."""
        dtype: jnp.dtype = jnp.dtype(jnp.float32 if path == PICK_BIAS else self.policy.param_dtype)
        return dtype

    def _base_dtype(self, path: str) -> jnp.dtype:
        return dtype_of_base(self.names[path], self.layout.dtype)

    def shardings(self) -> State:
        """Return the sharding of every array of a state, in the state's own tree."""
        shardings: State = jax.tree_util.tree_map_with_path(self._sharding, self._shapes)
        return shardings

    def abstract(self) -> State:
        """Return the state's shapes, dtypes and shardings, without arrays."""
        place = lambda x, sharding: Abstract(x.shape, x.dtype, sharding=sharding)  # noqa: E731
        state: State = jax.tree.map(place, self._shapes, self.shardings())
        return state

    def placed(self, state: State) -> State:
        """Put what of a state lies in the memory of hosts there; a program ends with it."""
        return state | {"optimizer": put_back(state["optimizer"], self.shardings()["optimizer"])}

    def lower_init(self) -> jax.stages.Lowered:
        """Lower the init program of what a run saves, which makes every array in its shards and none whole."""
        compiled_with = self.compiler_options(runs_once=True)
        made = without_base(self.shardings())

        def init() -> State:
            return self.placed(without_base(self.init()))

        return self.lower(jax.jit(init, out_shardings=made, compiler_options=compiled_with))

    def lower(self, jitted: Any, *arguments: Any) -> jax.stages.Lowered:
        """Lower a program of this job.

        On CPUs each of its collectives gets a channel of its own (docs/decisions/0043-channels.md).
        """
        with self.lowering():
            lowered: jax.stages.Lowered = jitted.lower(*arguments)
        return with_own_channels(lowered) if self._platform == "cpu" else lowered

    @contextmanager
    def lowering(self) -> Iterator[None]:
        """Set what every program is lowered in: the mesh, and products as precise as their operands.

        By default a TPU multiplies float32 matrices in one pass of bfloat16, and a GPU in its 19-bit format.
        """
        exact = self.layout.dtype == jnp.float32 and self._platform != "cpu"  # a CPU has one precision only
        with jax.set_mesh(self.layout.mesh), jax.default_matmul_precision("highest" if exact else None):
            yield

    @property
    def _platform(self) -> str:
        return str(self.layout.mesh.devices.flat[0].platform)

    def compiler_options(self, *, runs_once: bool = False) -> dict[str, Value] | None:
        """Return the options for XLA, the same in every process of a run.

        They are the accelerator's, the job's and, on CPUs, quick compilation for two kinds of programs. Init runs once,
        is no slower for it and keeps all its bits (tests/train/test_state.py). Processes of simulated hosts wait for
        each other's sums most of the time (docs/decisions/0009-kept-programs.md has the times).
        """
        devices = self.layout.mesh.devices.flat
        simulates_hosts = len({device.process_index for device in devices}) > 1
        quickly = self._platform == "cpu" and (runs_once or simulates_hosts)
        return {**(COMPILED_QUICKLY if quickly else {}), **self.xla_options} or None

    @cached_property
    def _shapes(self) -> State:
        """The state's shapes and dtypes, from tracing `init`."""
        shapes: State = jax.eval_shape(self.init)
        return shapes

    def _sharding(self, path: tuple[object, ...], leaf: Abstract) -> NamedSharding:
        """Place a moment where its parameter lives, and counters on every device."""
        owner = is_moment_of(path)
        if owner is not None and owner in self.names and leaf.ndim == len(self.names[owner]):
            stored = self.layout.stored(self.names[owner])
            is_away = on_hosts(self.training) and path[0] == jax.tree_util.DictKey("optimizer")
            return on_host(stored) if is_away else stored
        return self.layout.replicated


def _with_copies(training: Training, weights: Mapping[str, T]) -> dict[str, T]:
    """Return what is given for each weight, and once more for what preferences are compared with if that is a copy."""
    is_twice = training.has_reference and training.lora is None
    return {**weights, **({REFERENCE + path: x for path, x in weights.items()} if is_twice else {})}


def without_copies(params: Mapping[str, T]) -> dict[str, T]:
    """Return what is given for each parameter, without those that preferences are compared with."""
    return {path: x for path, x in params.items() if not path.startswith(REFERENCE)}


def without_base(state: State) -> State:
    """Return what a run saves of its state."""
    return {name: part for name, part in state.items() if name != BASE}


def parameters(state: State) -> dict[str, Any]:
    """Return all parameters, those that are trained and those that stay as they are."""
    return {**state.get(BASE, {}), **state["params"]}


def beside_weights(state: State) -> dict[str, Any]:
    """Return what steps keep beside the weights, flat: the optimizer's state, and their mean."""
    return flat({name: state[name] for name in ("optimizer", AVERAGE) if name in state})


def averaged(program: Program, state: State) -> dict[str, Any] | None:
    """Return all parameters with the mean of those that are trained in their place; None of a run without a mean."""
    if AVERAGE not in state:
        return None
    means = state[AVERAGE].weights
    return {**state.get(BASE, {}), **{path: x.astype(program.kept_dtype(path)) for path, x in means.items()}}


def flat(state: Any) -> dict[str, Any]:
    """Return a tree's leaves by dotted path, e.g. `params.blocks.mlp.up.weight` or `optimizer.1.0.mu.norm.bias`."""
    leaves = jax.tree_util.tree_leaves_with_path(state)
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}


def unflat(like: State, leaves: Mapping[str, Any]) -> State:
    """Return a state in the tree of `like`: the inverse of `flat`."""
    state: State = jax.tree.unflatten(jax.tree.structure(like), [leaves[path] for path in flat(like)])
    return state
