"""Trains with FSDP2. The script itself chooses owners and exchanges data over torch.distributed.

  torchrun --standalone --nproc-per-node 2 torch_functions.py
"""

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

import muonrt.torch

WIDTH, STEPS = 24, 20


class Rows:
    """Moves row-sharded matrices with all-to-all. Tensors have the transport dtype."""

    def __init__(self, model):
        self.group = dist.new_group()  # no other collectives use this group
        self.rank, self.size = dist.get_rank(self.group), dist.get_world_size(self.group)
        layout = muonrt.Layout(muonrt.Mesh((self.size,)), "S(0)")
        self.rows = {name: [layout.local_shape(p.shape, r)[0] for r in range(self.size)]
                     for name, p in model.named_parameters() if p.ndim == 2}
        self.calls = 0

    def assign(self, info):  # round-robin; called once for each parameter of Muon
        return info.index % info.world

    def gather(self, name, owner, local, full):
        """Fills `full` on the owner. On other ranks, `full` is None."""
        send, receive = self.sizes(name, owner, local)
        whole = local.new_empty(0) if full is None else full
        self.move(whole, local, receive, send)

    def redistribute(self, name, owner, full, local):
        """Fills `local` on every rank."""
        receive, send = self.sizes(name, owner, local)
        self.move(local, local.new_empty(0) if full is None else full, receive, send)

    def sizes(self, name, owner, local):
        """Returns the bytes that this rank sends to each rank, and receives from each rank, in a
        gather."""
        row = local.element_size() * local.shape[1]
        send = [self.rows[name][self.rank] * row if r == owner else 0 for r in range(self.size)]
        receive = [n * row if self.rank == owner else 0 for n in self.rows[name]]
        return send, receive

    def move(self, to, source, receive, send):
        self.calls += 1
        dist.all_to_all_single(to.view(-1).view(torch.uint8), source.view(-1).view(torch.uint8),
                               receive, send, group=self.group)


def train(own):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, 3 * WIDTH), torch.nn.Tanh(),
                                torch.nn.Linear(3 * WIDTH, 7))
    fully_shard(model)
    functions, options = Rows(model), {}
    if own:  # for debugging: async_parallelism=False, prefetch_count=0
        options = dict(assign=functions.assign, gather=functions.gather,
                       redistribute=functions.redistribute, prefetch_count=2)
    optimizer = muonrt.torch.Muon(model, lr=1e-2, role=lambda name, p: "muon" if p.ndim == 2 else None,
                                  **options)
    x = torch.linspace(-1, 1, 50 * WIDTH).view(50, WIDTH).sin()
    target = x[:, :7].cos()
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = (model(x) - target).square().mean()
        loss.backward()
        optimizer.step()
    optimizer.close()
    return [p.to_local().clone() for p in model.parameters()], loss.item(), functions.calls


def main():
    dist.init_process_group("gloo")
    expected, _, none = train(own=False)
    weights, loss, calls = train(own=True)
    assert all(torch.equal(a, b) for a, b in zip(expected, weights))
    assert (none, calls) == (0, 2 * 2 * STEPS)
    if dist.get_rank() == 0:
        print(f"{dist.get_world_size()} ranks: loss {loss:.4f}, the same weights")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
