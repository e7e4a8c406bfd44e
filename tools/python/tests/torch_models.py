"""Defines models for the tests of muonrt.torch, and gradients that are the same on every mesh."""

import torch
import torch.distributed as dist
import torch.distributed.tensor

import muonrt.torch
from muonrt._torch_ranks import local_of


class Model(torch.nn.Module):
    """A model with odd sizes. For a dimension of 13 rows on fsdp=3, tp=2, the two readings of
    placements differ. The head has fewer rows than some meshes have ranks."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed = torch.nn.Embedding(11, 8)
        self.up = torch.nn.Linear(8, 13)
        self.down = torch.nn.Linear(13, 8)
        self.norm = torch.nn.LayerNorm(8)
        self.head = torch.nn.Linear(8, 3, bias=False)

    def forward(self, tokens):
        x = self.embed(tokens)
        return self.head(self.norm(x + self.down(torch.tanh(self.up(x)))))


class Experts(torch.nn.Module):
    """A stack of five experts, each with rows x cols elements."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.w1 = torch.nn.Parameter(torch.randn(5, 8, 6))


def two_layers(dtype=torch.float32):
    """A model whose matrices are updated by Muon and whose vectors are updated by AdamW."""
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(12, 20), torch.nn.Tanh(),
                               torch.nn.Linear(20, 6)).to(dtype)


def role(name, p):
    # Muon also updates the head. If its 3 rows are sharded over more ranks, some shards are empty.
    return "muon" if name.removeprefix("module.") == "head.weight" else ("muon", "stack") if p.ndim == 3 else None


def optimizer(m, **settings):
    return muonrt.torch.Muon(m.named_parameters(),
                             **dict(lr=0.02, adamw_lr=0.01, role=role) | settings)


def drawn(seed, *shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def inject(m, step):
    """Sets gradients that depend only on the step, not on the device or the mesh."""
    for index, p in enumerate(m.parameters()):
        whole = drawn(1000 * step + index, *p.shape).to(device=p.device, dtype=p.dtype)
        p.grad = whole
        if isinstance(p, dist.tensor.DTensor):
            p.grad = dist.tensor.DTensor.from_local(
                cut_as(p, whole), p.device_mesh, p.placements, run_check=False, shape=p.shape,
                stride=p.stride())


def train(m, steps, *optimizers):
    for step in steps:
        inject(m, step)
        for one in optimizers:
            one.step()


def cut_as(p, whole):
    """Returns this rank's shard of `whole`. Like torch, shards first by TP, and then by FSDP."""
    placements = list(p.placements)
    coordinate = p.device_mesh.get_coordinate()
    strided = [i for i, q in enumerate(placements) if "StridedShard" in type(q).__name__]
    order = [i for i in range(len(placements)) if i not in strided] + strided
    for i in order:
        if hasattr(placements[i], "dim"):
            size, mine = p.device_mesh.size(i), coordinate[i]
            chunks = list(torch.chunk(whole, size, dim=placements[i].dim))
            empty = whole.narrow(placements[i].dim, 0, 0)
            whole = (chunks + [empty] * size)[mine]
    return whole.contiguous()


def full(tensor):
    """Returns the whole tensor as a NumPy array. Gathers a DTensor, so the call is then
    collective."""
    whole = tensor.detach()
    whole = whole.full_tensor() if isinstance(whole, dist.tensor.DTensor) else whole
    return whole.float().numpy().copy()


def one_rank(make=Model, steps=3, **settings):
    """Returns {name: whole parameter} and {name: whole momentum} after steps on one rank."""
    m = make()
    alone = optimizer(m, **settings)
    train(m, range(steps), alone)
    named = dict(m.named_parameters())
    return ({name: full(p) for name, p in named.items()},
            {name: full(alone.state[p]["momentum_buffer"]) for name, p in named.items()
             if "momentum_buffer" in alone.state[p]})


def same_part(name, tensor, whole):
    """Checks that this rank's shard of a tensor is bitwise identical to the expected shard."""
    whole = torch.from_numpy(whole)
    mine = cut_as(tensor, whole) if isinstance(tensor, dist.tensor.DTensor) else whole
    assert local_of(tensor).shape == mine.shape, name
    assert local_of(tensor).numpy().tobytes() == mine.numpy().tobytes(), name


def same_bits(a, b):
    assert all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))


def fsdp(m, size=None, **policy):
    from torch.distributed.fsdp import fully_shard

    for layer in (m.up, m.down):
        fully_shard(layer, **policy)
    return fully_shard(m, **policy)
