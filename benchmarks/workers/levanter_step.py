"""Levanter: its own train step on its own GPT-2 or Llama, as a user gets it.

A second argument asks for its cross entropy by blocks of so many vocabulary entries, which it leaves off by default.

Runs in .venv-bench. This release gives its loss a float mask where JAX wants booleans; that is mended from outside, and
no arithmetic is changed by it.
"""

import sys
from functools import partial
from typing import Any

from benchmarks.sizes import Case
from benchmarks.workers.serve import Stopwatch, compiled_memory, rate_of, serve, simulate

case, block = Case.loads(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else None
simulate(case.num_devices)
watch = Stopwatch()

import haliax as hax  # noqa: E402  reads the environment that `simulate` sets
import haliax.nn.loss  # noqa: E402
import jax  # noqa: E402
import jmp  # noqa: E402
import numpy as np  # noqa: E402
import optax  # noqa: E402
from benchmarks.workers.tokens import tokens_and_targets  # noqa: E402
from levanter.models.gpt2 import Gpt2Config  # noqa: E402
from levanter.models.llama import LlamaConfig  # noqa: E402
from levanter.models.lm_model import LmExample, compute_next_token_loss  # noqa: E402
from levanter.tracker import NoopConfig  # noqa: E402
from levanter.trainer import Trainer, TrainerConfig  # noqa: E402
from levanter.trainer_state import TrainerState  # noqa: E402

watch.lap("imports")

LEARNING_RATE, WEIGHT_DECAY = 3e-4, 0.1
reduce_loss = haliax.nn.loss.maybe_reduce_loss


class Settings(TrainerConfig):  # type: ignore[misc]
    """Levanter's settings over our mesh of simulated devices; it would make one of its own."""

    @property
    def device_mesh(self) -> jax.sharding.Mesh:
        """Replica, data, model: Levanter's names."""
        devices = np.array(jax.devices()).reshape(1, case.data, case.tensor)
        return jax.sharding.Mesh(devices, ("replica", "data", "model"))

    @property
    def num_slices(self) -> int:
        """One."""
        return 1


def main() -> None:
    """The first step compiles; then take turns."""
    haliax.nn.loss.maybe_reduce_loss = reduce_with_booleans
    size = case.size
    model = llama() if size.kv_heads else gpt2()
    settings = Settings(
        mp=jmp.get_policy("f32"),
        tracker=NoopConfig(),
        train_batch_size=size.sequences,
        model_axis_size=case.tensor,
        tensor_parallel_axes=["mlp", "heads"],
        require_accelerator=False,
        id="bench",
    )
    rule = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(LEARNING_RATE, b2=0.95, weight_decay=WEIGHT_DECAY))
    trainer = Trainer(settings, rule, mean_loss, add_default_hooks=False)
    mapping = settings.parameter_axis_mapping

    def init() -> Any:
        key = jax.random.PRNGKey(0)
        fresh = model.model_type.init(hax.Axis("vocab", size.vocab), model, key=key)
        return TrainerState.init(rule, fresh, key=key, is_trainable=True, mp=settings.mp)

    def step(state: Any, example: Any) -> Any:
        return trainer._train_step(state, (example,), {}, _no_hooks=True)  # noqa: SLF001  the step that its loop calls

    with hax.partitioning.set_mesh(settings.device_mesh), hax.axis_mapping(mapping):
        state = hax.named_jit(init, axis_resources=mapping)()
        example = hax.shard(examples(), settings.compute_axis_mapping)
        watch.lap("init")
        train = hax.named_jit(step, axis_resources=mapping, out_axis_resources=mapping, donate_args=(True,))
        compiled = train.lower(state, example).compile()
        watch.lap("compile")

        def once() -> None:
            nonlocal state
            result = train(state, example)
            state = result.new_state
            float(result.loss)

        once()
        watch.lap("step")
        facts = {**compiled_memory(compiled), "seconds": watch.seconds}
        serve(partial(rate_of, once, steps=size.steps, work=size.tokens), facts)


def gpt2() -> Any:
    """A GPT-2 of the case's size."""
    size = case.size
    assert size.mlp == Gpt2Config.mlp_scale * size.embed
    return Gpt2Config(
        seq_len=size.seq_len,
        hidden_dim=size.embed,
        num_layers=size.layers,
        num_heads=size.heads,
        cross_entropy_block_size=block,
    )


def llama() -> Any:
    """A Llama of the case's size."""
    size = case.size
    return LlamaConfig(
        seq_len=size.seq_len,
        hidden_dim=size.embed,
        intermediate_dim=size.mlp,
        num_layers=size.layers,
        num_heads=size.heads,
        num_kv_heads=size.kv_heads,
        cross_entropy_block_size=block,
    )


def mean_loss(model: Any, example: Any, *, key: Any = None) -> tuple[Any, dict[str, Any]]:
    """The loss that Levanter's own trainer minimises."""
    return compute_next_token_loss(model, example, key=key), {}


def reduce_with_booleans(arr: Any, reduction: Any, axis: Any, where: Any) -> Any:
    """Levanter's reduction, its mask as booleans."""
    return reduce_loss(arr, reduction, axis, None if where is None else where.astype(bool))


def examples() -> Any:
    """A batch in Levanter's form."""
    size = case.size
    Batch, Pos = hax.Axis("batch", size.sequences), hax.Axis("position", size.seq_len)
    tokens = hax.named(jax.numpy.asarray(tokens_and_targets(size)[0]), (Batch, Pos))
    one = LmExample.causal(tokens["batch", 0])
    mask = hax.broadcast_axis(one.loss_mask.astype(bool), Batch)
    return LmExample(tokens=tokens, loss_mask=mask, attn_mask=one.attn_mask)


if __name__ == "__main__":
    main()
