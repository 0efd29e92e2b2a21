"""What the machine can do at most: FLOP/s of float32 matrix products, measured as the trainer does for MFU."""

from functools import partial

from benchmarks.workers.serve import serve, simulate

simulate(1)

from shardwise.train.flops import measured_flops  # noqa: E402  imports JAX

if __name__ == "__main__":
    serve(partial(measured_flops, "float32"), {})
