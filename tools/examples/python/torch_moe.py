"""Trains a mixture of experts with FSDP2 and expert parallelism. 3-D tensors hold the experts.

  torchrun --standalone --nproc-per-node 4 torch_moe.py
"""

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor

import muonrt.torch

EXPERTS, WIDTH, HIDDEN, STEPS = 4, 16, 32, 150


class Mixture(torch.nn.Module):
    """A layer of experts, which are sharded over the mesh dimension "ep". All experts process all
    tokens, and the layer returns the weighted sum of their outputs."""

    def __init__(self, ep):
        super().__init__()
        self.ep = ep
        self.router = torch.nn.Linear(WIDTH, EXPERTS, bias=False)
        self.w1 = self.shard(torch.randn(EXPERTS, WIDTH, HIDDEN) / WIDTH**0.5)
        self.w2 = self.shard(torch.randn(EXPERTS, HIDDEN, WIDTH) / HIDDEN**0.5)

    def shard(self, whole):
        return torch.nn.Parameter(distribute_tensor(whole, self.ep, [Shard(0)]))

    def forward(self, x):
        w1, w2 = self.w1.to_local(), self.w2.to_local()
        share = self.router(x).softmax(-1).chunk(self.ep.size(), -1)[self.ep.get_local_rank()]
        hidden = torch.relu(torch.einsum("tw,ewh->eth", x, w1))
        mine = torch.einsum("eth,ehw,te->tw", hidden, w2, share)
        whole = mine.detach().clone()
        dist.all_reduce(whole, group=self.ep.get_group())
        return mine + (whole - mine.detach())  # value of `whole`, gradient of `mine`


def main():
    dist.init_process_group("gloo")
    size = dist.get_world_size()
    mesh = init_device_mesh("cpu", (size // 2, 2), mesh_dim_names=("fsdp", "ep"))
    torch.manual_seed(0)
    model = fully_shard(Mixture(mesh["ep"]), mesh=mesh["fsdp"])
    # Each expert is a matrix for Muon. AdamW updates the small router.
    optimizer = muonrt.torch.Muon(
        model.named_parameters(), lr=1e-2, weight_decay=0.0,
        role=lambda name, p: ("muon", "stack") if p.ndim == 3 else "adamw")
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(256, WIDTH, generator=generator)
    target = torch.sin(x.roll(1, dims=1) * 2)
    rank, ranks = mesh["fsdp"].get_local_rank(), mesh["fsdp"].size()
    first = None
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = (model(x[rank::ranks]) - target[rank::ranks]).square().mean()
        loss.backward()
        # Each rank of "ep" has the router's gradient only for its own experts, so sum the
        # gradients.
        dist.all_reduce(model.router.weight.grad.to_local(), group=mesh["ep"].get_group())
        optimizer.step()
        first = loss.item() if first is None else first
    if dist.get_rank() == 0:
        print(f"w1: {tuple(model.w1.shape)} as {model.w1.placements}")
        print(f"{size} ranks: loss {first:.4f} -> {loss.item():.4f}")
    assert loss.item() < first / 2
    optimizer.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
