"""Trains a small transformer's MLPs under FSDP2 x tensor parallelism.

  torchrun --standalone --nproc-per-node 4 torch_fsdp2_tp.py
"""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

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
    dist.init_process_group("gloo")
    size = dist.get_world_size()
    mesh = init_device_mesh("cpu", (size // 2, 2), mesh_dim_names=("dp", "tp"))
    torch.manual_seed(0)
    blocks = [Block(), Block()]
    model = torch.nn.Sequential(torch.nn.Embedding(VOCABULARY, WIDTH), *blocks,
                                torch.nn.Linear(WIDTH, VOCABULARY, bias=False))
    for block in blocks:
        parallelize_module(block, mesh["tp"], {"up": ColwiseParallel(),
                                               "down": RowwiseParallel()})
        fully_shard(block, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])

    # By name "0.weight" and "3.weight" are no embedding and no head: tell it.
    optimizer = muonrt.torch.Muon(
        model.named_parameters(), lr=0.02, adamw_lr=3e-3,
        role=lambda name, p: "adamw" if name in ("0.weight", "3.weight") else None)
    tokens = torch.arange(680) * 5 % VOCABULARY
    labels = (tokens * tokens + 3) % VOCABULARY
    rank, ranks = mesh["dp"].get_local_rank(), mesh["dp"].size()
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(tokens[rank::ranks]), labels[rank::ranks])
        loss.backward()
        optimizer.step()
    if dist.get_rank() == 0:
        up = blocks[0].up.weight
        print(f"up.weight: {tuple(up.shape)} as {up.placements}")
        print(f"{size} ranks: loss {loss.item():.4f} after {optimizer.last_report.step} steps")
    assert loss.item() < 0.5
    optimizer.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
