"""Trains a small model in one process, or in several with FSDP2. Only the optimizer is muonrt's.

  python torch_fsdp2.py
  torchrun --standalone --nproc-per-node 2 torch_fsdp2.py
"""

import os

import torch
import torch.distributed as dist

import muonrt.torch

VOCABULARY, WIDTH, STEPS = 17, 32, 60


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.up = torch.nn.Linear(WIDTH, 3 * WIDTH)
        self.down = torch.nn.Linear(3 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


def main():
    over_ranks = "RANK" in os.environ
    if over_ranks:
        dist.init_process_group("gloo")
    rank, size = (dist.get_rank(), dist.get_world_size()) if over_ranks else (0, 1)
    torch.manual_seed(0)
    model = torch.nn.Sequential()
    model.add_module("embed", torch.nn.Embedding(VOCABULARY, WIDTH))
    for i in range(2):
        model.add_module(f"block{i}", Block())
    model.add_module("lm_head", torch.nn.Linear(WIDTH, VOCABULARY, bias=False))
    if over_ranks:
        from torch.distributed.fsdp import fully_shard

        for layer in model:
            if isinstance(layer, Block):
                fully_shard(layer)
        fully_shard(model)

    # Muon updates the matrices of the blocks, and AdamW updates embedding, head, norms and biases.
    optimizer = muonrt.torch.Muon(model.named_parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / STEPS)
    tokens = torch.arange(680) * 5 % VOCABULARY
    labels = (tokens * tokens + 3) % VOCABULARY
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(tokens[rank::size]), labels[rank::size])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    if rank == 0:
        print(f"{size} ranks: loss {loss.item():.4f} after {optimizer.last_report.step} steps")
    assert loss.item() < 0.5
    optimizer.close()
    if over_ranks:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
