"""Shardwise: the compiled step of `shardwise.train.step` itself, driven as the loop drives it."""

import sys
from functools import partial

from benchmarks.sizes import Case, Size
from benchmarks.workers.serve import compiled_memory, rate_of, serve, simulate

case = Case.loads(sys.argv[1])
simulate(case.num_devices)

import jax  # noqa: E402  reads the environment that `simulate` sets
import numpy as np  # noqa: E402
from benchmarks.workers.tokens import tokens_and_targets  # noqa: E402

from shardwise.job.load import loads  # noqa: E402
from shardwise.job.resolve import resolve  # noqa: E402
from shardwise.train.config import GptConfig  # noqa: E402
from shardwise.train.flops import flops_per_token  # noqa: E402
from shardwise.train.layout import Layout  # noqa: E402
from shardwise.train.microbatches import Batch  # noqa: E402
from shardwise.train.state import Program  # noqa: E402
from shardwise.train.step import lower_step  # noqa: E402

JOB = """
apiVersion: shardwise.dev/v1alpha1
kind: TrainingJob
metadata: {{name: bench}}
spec:
  hardware: {{accelerator: cpu-sim, topology: 1x{num_devices}}}
  training:
    model: {{layers: {layers}, heads: {heads}, embed: {embed}, mlp: {mlp}, seqLen: {seq_len}, vocabSize: {vocab}{more}}}
    data: {{train: [{{name: none, paths: [none]}}], tokenizer: byte}}
    mesh: {{tensor: {tensor}}}
    batch: {{sequences: {sequences}}}
    optimizer: {{name: adamw, learningRate: 3e-4, weightDecay: 0.1, clipNorm: 1.0}}
    steps: 1000
"""


LLAMA = """, kvHeads: {kv_heads}, norm: rms, activation: swiglu, position: rotary, rotaryPairs: half, tiedHead: false,
      attentionBias: false, mlpBias: false"""


def main() -> None:
    """Compile, then take turns."""
    program = program_of(case)
    compiled = lower_step(program).compile()
    state = program.lower_init().compile()()
    batch = jax.device_put(random_batch(case.size), program.layout.batch)
    words = jax.device_put(np.zeros(case.num_devices, np.int32), program.layout.control)

    def once() -> None:
        nonlocal state
        state, metrics = compiled(state, batch, words)
        jax.device_get(metrics)

    facts = {**compiled_memory(compiled), "flops_per_token": flops_per_token(program.config, program.training)}
    serve(partial(rate_of, once, steps=case.size.steps, work=case.size.tokens), facts)


def program_of(case: Case) -> Program:
    """The program of a case's job."""
    training = resolve(loads(job_text(case))).spec.training
    config = GptConfig.of(training, tokenizer_size=case.size.vocab, platform="cpu")
    return Program.of(training, Layout.of(training, jax.devices()), config)


def job_text(case: Case) -> str:
    """The job file of a case."""
    size = case.size
    return JOB.format(
        num_devices=case.num_devices,
        layers=size.layers,
        heads=size.heads,
        embed=size.embed,
        mlp=size.mlp,
        seq_len=size.seq_len,
        vocab=size.vocab,
        tensor=case.tensor,
        sequences=size.sequences,
        more=LLAMA.format(kv_heads=size.kv_heads) if size.kv_heads else "",
    )


def random_batch(size: Size) -> Batch:
    """A whole batch on the host."""
    tokens, targets = tokens_and_targets(size)
    weights, segments = np.ones(tokens.shape, np.float32), np.zeros(tokens.shape, np.int32)
    return Batch(tokens, targets, weights, segments)  # type: ignore[arg-type]  # numpy, until it is put on the devices


if __name__ == "__main__":
    main()
