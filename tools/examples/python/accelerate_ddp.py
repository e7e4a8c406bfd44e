"""Trains with accelerate, saves the state, and resumes from it if the program is run again.

  python accelerate_ddp.py FOLDER [STEPS]
  torchrun --standalone --nproc-per-node 2 accelerate_ddp.py FOLDER [STEPS]
"""

import os
import sys

import torch
from accelerate import Accelerator

import muonrt.torch


def main(folder, steps=16):
    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(12, 32), torch.nn.Tanh(), torch.nn.Linear(32, 32), torch.nn.Tanh(),
                                torch.nn.Linear(32, 6))
    inputs, targets = torch.randn(2, 64, 12)[:, accelerator.process_index::accelerator.num_processes]
    optimizer = muonrt.torch.Muon(model, lr=1e-2)
    model, optimizer = accelerator.prepare(model, optimizer)
    first = 0
    if os.path.isdir(folder):
        accelerator.load_state(folder)
        first = optimizer.optimizer.param_groups[0]["steps"]
    for step in range(first, steps):
        optimizer.zero_grad()
        loss = (model(inputs) - targets[:, :6]).square().mean()
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    accelerator.save_state(folder)
    loss = accelerator.reduce(loss.detach(), reduction="mean").item()
    accelerator.print(f"{accelerator.num_processes} ranks, after step {first}: loss {loss:.6f} at step {steps}")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
