"""Trains a small model with DistributedDataParallel; each matrix is orthogonalized on one rank.

  torchrun --standalone --nproc-per-node 2 torch_ddp.py
"""

import torch
import torch.distributed as dist

import muonrt.torch

STEPS = 60


def main():
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Tanh(),
                                torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
    model = torch.nn.parallel.DistributedDataParallel(model)
    # The last layer has one row: by AdamW, as its bias is.
    optimizer = muonrt.torch.Muon(
        model.named_parameters(), lr=0.02, adamw_lr=1e-2, weight_decay=0.0,
        role=lambda name, p: "adamw" if p.shape[0] == 1 else None)
    x = torch.rand(512, 16) * 2 - 1
    target = (x * x.roll(1, dims=1)).sum(1, keepdim=True)
    first = None
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = (model(x[rank::size]) - target[rank::size]).square().mean()
        loss.backward()
        # A bucket of gradients that is torch's own, reduced by DDP: nothing is copied.
        optimizer.step()
        first = loss.item() if first is None else first
    if rank == 0:
        print(optimizer.plan)
        print(f"{size} ranks: loss {first:.4f} -> {loss.item():.4f}")
    assert loss.item() < first / 10

    # Every rank holds the same bits.
    for p in model.parameters():
        other = p.detach().clone()
        dist.broadcast(other, 0)
        assert torch.equal(other, p)
    optimizer.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
