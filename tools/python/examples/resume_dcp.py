"""Saves model and optimizer with torch.distributed.checkpoint, and goes on over other ranks.

  torchrun --standalone --nproc-per-node 2 resume_dcp.py FOLDER
  torchrun --standalone --nproc-per-node 3 resume_dcp.py FOLDER
"""

import os
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

import muonrt.torch

STEPS = 20


class Trainer:
    """What dcp saves and loads: it asks for state_dict, and calls load_state_dict."""

    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer

    def state_dict(self):
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def load_state_dict(self, state):
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"],
                       optim_state_dict=state["optimizer"])


def main(folder):
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(13, 29), torch.nn.Tanh(), torch.nn.Linear(29, 7))
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    optimizer = muonrt.torch.Muon(model.named_parameters(), lr=0.02, adamw_lr=1e-2)
    trainer = Trainer(model, optimizer)
    done = 0
    if os.path.exists(os.path.join(folder, ".metadata")):
        dcp.load({"trainer": trainer}, checkpoint_id=folder)
        done = int(next(iter(optimizer.state.values()))["step"])
    x = torch.linspace(-1, 1, 60 * 13).reshape(60, 13)
    target = torch.sin(3 * x[:, :7])
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = (model(x[rank::size]) - target[rank::size]).square().mean()
        loss.backward()
        optimizer.step()
    dcp.save({"trainer": trainer}, checkpoint_id=folder)
    if rank == 0:
        print(f"{size} ranks: steps {done} to {optimizer.last_report.step}, loss {loss.item():.4f}")
    assert optimizer.last_report.step == done + STEPS
    optimizer.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
