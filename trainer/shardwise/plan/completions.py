"""What making completions takes, of a job that learns from rewards: its programs, compiled as the step is."""

from shardwise.job.accelerators import accelerator_of, usable_bytes
from shardwise.job.rounding import num_parts
from shardwise.plan.compiled import Step, compiled_in_words
from shardwise.plan.result import Completions, MemoryUse
from shardwise.train.decoder import bytes_of, window_for
from shardwise.train.memory import peak_bytes
from shardwise.train.sampler import lowering, room
from shardwise.train.work import Work


def completions(step: Step, held: MemoryUse) -> Completions | None:
    """Return what a device holds while completions are made, and the least time; None of any other job.

    Prompts are taken to be as long as `maxTokens` leaves room for. The state stays where it is all the time, and so do
    the programs.

    Raises:
        CompilerError: XLA refuses a program for another reason than memory.
        OutOfMemoryError: XLA refuses one because it does not fit into the device's memory.

    """
    program, learning = step.program, step.program.training.reinforcement
    if learning is None:
        return None
    rows, layout = room(program, usable_bytes(step.job))
    window = window_for(program, program.config.seq_len - learning.max_tokens)
    platform = program.layout.mesh.devices.flat[0].platform
    state, beside, codes = held.parameters + held.optimizer, list[int](), step.code_bytes
    for name, lower in lowering(program, layout, rows, window)._asdict().items():
        analysis = compiled_in_words(lower(), Work.COMPLETIONS).memory_analysis()
        assert analysis is not None
        codes += analysis.generated_code_size_in_bytes
        # The parameters that weights are made of are a part of the state.
        taken = analysis.argument_size_in_bytes if name == "weights" else 0
        beside.append(peak_bytes(analysis, platform) - taken)
    weights, caches = bytes_of(program, layout, rows)
    bandwidth = accelerator_of(step.job.spec.hardware).spec.memory_bandwidth
    rounds = num_parts(program.training.batch.sequences, rows)
    least = rounds * learning.max_tokens * (weights + caches)
    return Completions(
        rows=rows,
        weights=weights,
        caches=caches,
        total=state + max(beside) + codes,
        gathers=layout.parameters != program.layout.whole_over_data().parameters,
        seconds=None if bandwidth is None or step.stand_in else least / float(bandwidth.value),
    )
