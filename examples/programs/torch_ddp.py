"""A program of torch that knows nothing of Shardwise: gloo between hosts, a file of its own to go on from after a kill.

At SIGTERM all processes agree on the step after which they save and end.

shardwise run --hosts 2 -- python examples/programs/torch_ddp.py
"""

import hashlib
import os
import signal
import sys
from pathlib import Path

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 200
saved = Path(os.environ["SHARDWISE_RUN_DIRECTORY"]) / "torch.pt"
stop = torch.zeros(1)
signal.signal(signal.SIGTERM, lambda *_: stop.fill_(1))
torch.manual_seed(0)
torch.set_num_threads(1)
distributed.init_process_group("gloo")  # MASTER_ADDR, MASTER_PORT, RANK and WORLD_SIZE are set
rank = distributed.get_rank()
model = DistributedDataParallel(nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 1)))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
first = 0
if saved.exists():
    state = torch.load(saved)
    first = state["step"]
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
for step in range(first + 1, steps + 1):
    numbers = torch.rand(64, 1, generator=torch.Generator().manual_seed(step * distributed.get_world_size() + rank))
    loss = nn.functional.mse_loss(model(numbers), torch.sin(3 * numbers))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    agreed = stop.clone()
    distributed.all_reduce(agreed, distributed.ReduceOp.MAX)
    if step % 50 == 0 or agreed:
        print(f"step {step} loss {loss.item():.5f}")
        if rank == 0:
            torch.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, f"{saved}.new")
            Path(f"{saved}.new").replace(saved)
    if agreed:
        distributed.destroy_process_group()
        sys.exit()
bits = b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())
print("parameters", hashlib.sha256(bits).hexdigest())
distributed.destroy_process_group()
