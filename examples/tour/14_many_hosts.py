# %% [markdown]
# # From here to many hosts
#
# Two processes with two devices each join by hand and train the trainer's own job, to the last bit as `shardwise run`
# does on two hosts. Then one of them is killed, in both: by hand all is lost, and the launcher goes on.
#
# Everything so far was one process that has all devices. A host of a cluster has only its own: four chips of a TPU,
# say, or eight GPUs. Here a "host" is a process of this machine with two simulated devices.
#
# It is sometimes said that one can go from a few TPU chips to a pod without issues between the machines. That is true
# of the compiled program, which does not know of hosts. It is not true of the processes that run it. They must find
# each other, each must bring its own rows, and none outlives another.

# %%
import argparse
import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from matplotlib.figure import Figure

import show
from shardwise.cli.live import live_status
from shardwise.job.load import load
from shardwise.job.resolve import resolve
from shardwise.protocol.contract import CACHE_VARIABLE, EVENTS, LOGS, METRICS, SUMMARY
from shardwise.train.data.dataset import Reading, prepare
from shardwise.train.data.opening import Watch
from shardwise.train.metrics import records, steps
from shardwise.train.microbatches import Batch
from shardwise.train.start import build
from shardwise.train.step import lower_step

jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 2)

HOSTS, STEPS, KILL_AT, SAVE_EVERY, BOUND_SECONDS = 2, 20, 8, 4, 500
JOB = f"""
apiVersion: shardwise.dev/v1alpha1
kind: TrainingJob
metadata: {{name: tour}}
spec:
  hardware: {{accelerator: cpu-sim, topology: {HOSTS}x2}}
  training: {{
    model: {{preset: tiny, layers: 2, seqLen: 32}}, batch: {{sequences: 8}}, mesh: {{tensor: 2}},
    data: {{train: [{{name: text, paths: [text.txt]}}], tokenizer: byte}},
    optimizer: {{name: adamw, learningRate: 1e-3}},
    steps: {STEPS}, checkpoint: {{everySteps: {SAVE_EVERY}}} }}
"""

# %% [markdown]
# ## A host's part, by hand
#
# Five things make a program of several processes out of one. Model, data and the compiled step are the installed
# trainer's own functions, so that nothing else differs.
#
# 1. **Join.** `jax.distributed.initialize`, before anything asks for devices: rank 0 opens a *coordinator*, a small
#    server for addresses and heartbeats, and everyone connects. After that `jax.devices()` are those of all hosts.
# 2. **One program.** Every process compiles and calls the same step in the same order. XLA's sums between processes go
#    through a library: gloo over TCP here (the default on CPU today), NCCL on GPUs, the chips' own links on TPUs.
# 3. **Arrays that nobody holds whole.** The state is born in its shards: a process only ever has those of its devices.
# 4. **Own rows.** A process reads only its part of the batch, and says of which global array it is a part.
# 5. **Words in common.** What is equal everywhere, such as the loss, every process can read.
#
# This file starts itself once for each host, with the rank and the port as arguments; that copy ends with this cell.


# %%
def host(rank: int, port: str) -> None:
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.config.update("jax_enable_preemption_service", False)  # it would take SIGTERM for itself
    join = partial(jax.distributed.initialize, heartbeat_timeout_seconds=20, shutdown_timeout_seconds=2)
    join(f"127.0.0.1:{port}", HOSTS, rank, cluster_detection_method="deactivate")
    job = resolve(load(Path("job.yaml")))
    training, program = job.spec.training, build(job, jax.devices())
    state = program.lower_init().compile()()
    leaves, mine = jax.tree.leaves(state), jax.local_devices()
    held = [sum(x.addressable_shards[i].data.nbytes for x in leaves) for i in range(len(mine))]
    say(rank, sees=jax.device_count(), own=len(mine), held=max(held), whole=sum(x.nbytes for x in leaves))
    reading = Reading(seq_len=32, sequences=training.batch.sequences, steps=training.steps, seed=training.seed)
    data = prepare(training.data, reading, cache_root=Path(f"cache-{rank}"), watch=Watch(report=print))
    step, share = lower_step(program).compile(), training.batch.sequences // HOSTS
    idle = jax.make_array_from_callback((4,), program.layout.control, lambda _: np.zeros(1, np.int32))
    for number in itertools.count():
        first = number * training.batch.sequences + rank * share
        rows = data.train.rows(np.arange(first, first + share))
        place = program.layout.batch
        batch = Batch(*(jax.make_array_from_process_local_data(place, x) for x in vars(rows).values()))
        state, metrics = step(state, batch, idle)
        say(rank, step=number + 1, loss=float(metrics.loss))


def say(rank: int, **words: float) -> None:
    with Path(f"{rank}.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps({"time": time.time(), **words}) + "\n")


if len(sys.argv) > 1:
    host(int(sys.argv[1]), sys.argv[2])

# %% [markdown]
# ## Together
#
# Two processes are started, and when both have told the losses of all steps, rank 1 gets a SIGKILL, which no program
# can catch: so ends a process whose machine loses power or that the system ends for its memory.

# %%
folder = Path((scratch := tempfile.TemporaryDirectory()).name)
(folder / "job.yaml").write_text(JOB, encoding="utf-8")
shutil.copy(argparse.__file__, folder / "text.txt")  # some text that is on every machine


@contextmanager
def started(name: str, *command: object) -> Iterator[subprocess.Popen[bytes]]:
    here = {**os.environ, "NPROC": "8", CACHE_VARIABLE: str(folder / "cache")}
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(list(map(str, command)), cwd=folder, env=here, stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def wait_for(done: Callable[[], object], *processes: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + BOUND_SECONDS
    while not done() and time.monotonic() < until and any(process.poll() is None for process in processes):
        time.sleep(0.05)


def told(rank: int) -> list[dict[str, Any]]:
    return list(records(folder / f"{rank}.jsonl"))


with socket.create_server(("127.0.0.1", 0)) as free:
    port = free.getsockname()[1]
with started("0", sys.executable, __file__, 0, port) as one, started("1", sys.executable, __file__, 1, port) as two:
    wait_for(lambda: told(0) and told(1), one, two)
    start = [told(rank)[0] for rank in range(HOSTS)]
    assert all((x["sees"], x["own"]) == (4, 2) for x in start), "each process sees four devices and owns two"
    assert all(x["held"] < x["whole"] / 3.5 for x in start), "no device holds more than its share of the state"
    wait_for(lambda: min(len(told(0)), len(told(1))) > STEPS, one, two)
    losses, same = ([x["loss"] for x in told(rank)[1 : STEPS + 1]] for rank in range(HOSTS))
    assert losses == same, "every process reads the same losses"
    by_hand_killed = time.time()
    two.send_signal(signal.SIGKILL)
    wait_for(lambda: False, one)
    code, by_hand_ended = one.poll(), time.time()
by_hand, others = told(0)[1:], told(1)[1:]
rows = [(f"rank {r}", x["sees"], x["own"], f"{x['held']:,}", f"{x['whole']:,}") for r, x in enumerate(start)]
show.table("By hand", ("process", "devices seen", "its own", "bytes on each", "of a state of"), rows)

# %% [markdown]
# What becomes of rank 0? It is in a sum that nobody will complete. gloo notices, because the system closes the
# connections of a process that dies; a machine that loses its power closes nothing, and then the wait is for heartbeats
# that stay away (100 seconds unless told otherwise; we said 20). Sometimes gloo misses even a closed connection. The
# error comes out where rank 0 reads the loss, and ends its Python code. It waits once more: at exit all processes meet
# in a barrier, for five minutes unless told otherwise (we said two seconds). Then JAX aborts the process with signal 6.
# Nobody starts anything again, and all steps are lost, because nothing was saved.

# %%
lines = (folder / "0.log").read_text(encoding="utf-8", errors="replace").splitlines()
heard = next((x for x in lines if "Error: " in x or "heartbeat" in x), "no error")
print("rank 0:", heard.partition("] ")[2] if "heartbeat" in heard else heard.partition("[")[0])
print(f"complete steps when rank 1 was killed: {len(others)}; when rank 0 ended, with {code}: {len(by_hand)}")
print(f"to be done again: {len(by_hand)} steps")
assert code not in (None, 0), "without its peer the other process ends with an error"

# %% [markdown]
# ## The same job under the launcher
#
# `shardwise run` starts one *agent* for each host, and each agent a trainer, which joins just as above, with the same
# job file. Every few steps the state is saved, each process its own shards. Then the trainer of host 1 is killed, and
# this happens:
#
# - Its agent sees its child end and tells the others, which end theirs at once: nobody waits for a heartbeat.
# - Two processes that have stood by, with all imports done, get orders: a new *attempt*, with a new coordinator.
# - They load the compiled step, read the newest checkpoint into their shards, and go on with the batch that comes next,
#   which is a function of seed and step and nothing else.


# %%
def is_due() -> bool:
    made = list(records(run / METRICS))
    return len(made) > KILL_AT and any(x.get("event") == "saved" for x in made)


run = Path(tempfile.mkdtemp(dir=folder))
with started("run", Path(sys.executable).with_name("shardwise"), "run", "job.yaml", "--dir", run) as launcher:
    wait_for(lambda: list(records(run / METRICS)) and live_status(run), launcher)
    status: Any = live_status(run)
    wait_for(is_due, launcher)
    os.kill(status.hosts[1].trainer_pid, signal.SIGKILL)
    wait_for(lambda: False, launcher)
summary = json.loads((run / SUMMARY).read_text(encoding="utf-8"))
ending = (launcher.poll(), summary["status"], summary["restarts"])
print("exit code of the launcher, how the run stands, restarts by cause:", *ending)
assert ending == (0, "complete", {"failure": 1}), "the launcher starts the trainers again, once, and the run completes"
events, made = list(records(run / LOGS / EVENTS)), list(records(run / METRICS))
ended, (begun, again) = next(x for x in events if x["event"] == "ended"), [x for x in events if x["event"] == "running"]
words = {"session": "Ray connects the agents", "attempt": "trainers get orders", "running": "first step complete"}
assert again["fromStep"] >= SAVE_EVERY, "it goes on from a checkpoint and not from the beginning"
short = [x for x in events if x["event"] != "hosts"]  # where each host's time went, in many words
told_of = [(words.get(x["event"], x["event"]), x.get("attempt", ""), x.get("message", "")) for x in short]
show.table("What the launcher wrote down", ("event", "attempt", "in its words"), told_of)
at = next(i for i, x in enumerate(made) if x.get("event") == "restored")
parts = [[x for x in part if "loss" in x] for part in (made[:at], made[at:])]  # before and after
print(f"on two cores: {again['time'] - ended['time']:.1f} s from the end to the next complete step")
print(f"it went on from step {again['fromStep']}; to be done again: {len(parts[0]) - again['fromStep']} steps")
kept = [x["loss"] for x in steps(run / METRICS)]
ends = [f"step {n}: {losses[n - 1]} {kept[n - 1]}" for n in (1, STEPS)]
print("losses by hand, and under the launcher:", *ends, sep="\n")
assert kept == losses, "killed and restarted, its losses are those of the processes by hand"

# %% [markdown]
# ## The two, side by side
#
# The losses of all steps are equal to the last bit, so no tolerance is needed, and a kill in between changes none of
# them: the same program, layout and batches give the same bits. What the launcher adds is everything around it.

# %%
figure = Figure(figsize=(10, 3.4), layout="constrained")
left, right = figure.subplots(1, 2, sharey=True)
left.plot([x["time"] - by_hand_killed for x in by_hand], [x["step"] for x in by_hand])
left.plot([0, 0, by_hand_ended - by_hand_killed], [len(by_hand), 0, 0], color="C3", label="lost, and nobody goes on")
for begin, part in zip((begun, again), parts, strict=True):
    passed = np.cumsum([0, *(x["stepSeconds"] for x in part[1:])]) + begin["time"] - ended["time"]
    right.plot(passed, [x["step"] for x in part], color="C0")
places = [len(parts[0]), again["fromStep"], again["fromStep"]]
right.plot([0, 0, again["time"] - ended["time"]], places, color="C1", label="a new attempt, from a checkpoint")
for axes, title in ((left, "two processes by hand"), (right, "shardwise run")):
    axes.set(title=title, xlabel="seconds from the kill", ylabel="steps that are done", ylim=(-1, None))
    axes.legend()
show.picture(figure, "kill", "A kill by hand costs all steps; under the launcher, those since the last checkpoint.")
scratch.cleanup()
