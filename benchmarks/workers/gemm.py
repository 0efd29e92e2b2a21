"""What the machine can do at most: float32 matrix products on one device, FLOP/s, measured as the trainer does for MFU."""

from benchmarks.workers.serve import serve, simulate

simulate(1)

from shardwise.train.flops import measured_peak_flops  # noqa: E402  imports JAX

if __name__ == "__main__":
    serve(measured_peak_flops, {})
