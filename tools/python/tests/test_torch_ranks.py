"""muonrt.torch.Muon over gloo processes: under equal gradients every mesh gives the bits of one."""

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from torch_ranks import full, on_gloo  # noqa: E402

import muonrt.torch  # noqa: E402
from muonrt._torch_ranks import local_of  # noqa: E402

STEPS = 3


class Experts(torch.nn.Module):
    """Five experts x rows x cols."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.w1 = torch.nn.Parameter(torch.randn(5, 8, 6))


class Model(torch.nn.Module):
    """Odd sizes: 13 rows over fsdp=3, tp=2 are where the two readings of placements part; the head
    has fewer rows than some meshes have ranks."""

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


def role(name, p):
    # The head by Muon too: 3 rows over more ranks leave some without any.
    return "muon" if name == "head.weight" else ("muon", "stack") if p.ndim == 3 else None


def optimizer(m, **settings):
    return muonrt.torch.Muon(m.named_parameters(), lr=0.02, adamw_lr=0.01,
                             role=role, **settings)


def whole_gradient(p, index, step):
    generator = torch.Generator().manual_seed(1000 * step + index)
    return torch.randn(p.shape, generator=generator)


def inject(m, step):
    """The same gradients on every mesh: a DTensor's is cut as the parameter is."""
    for index, (_, p) in enumerate(m.named_parameters()):
        gradient = whole_gradient(p, index, step)
        if isinstance(p, dist.tensor.DTensor):
            local = cut_as(p, gradient)
            p.grad = dist.tensor.DTensor.from_local(local, p.device_mesh, p.placements,
                                                    run_check=False, shape=p.shape,
                                                    stride=p.stride())
        else:
            p.grad = gradient


def cut_as(p, whole):
    """This rank's part of `whole`, found by torch alone: TP's cut first, then FSDP's."""
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


def fsdp(m, size):
    from torch.distributed.fsdp import fully_shard

    for layer in (m.up, m.down):
        fully_shard(layer)
    return fully_shard(m)


def hsdp(m, size):
    from torch.distributed.fsdp import fully_shard

    mesh = dist.device_mesh.init_device_mesh("cpu", (2, size // 2),
                                             mesh_dim_names=("replicate", "shard"))
    return fully_shard(m, mesh=mesh)


def tensor_parallel(m, mesh):
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    return parallelize_module(m, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})


def tp(m, size):
    return tensor_parallel(m, dist.device_mesh.init_device_mesh("cpu", (size,)))


def fsdp_tp(m, size):
    from torch.distributed.fsdp import fully_shard

    mesh = dist.device_mesh.init_device_mesh("cpu", (size // 2, 2), mesh_dim_names=("dp", "tp"))
    tensor_parallel(m, mesh["tp"])
    # Norm and head lie on "dp" alone: each rank knows its own line of the mesh.
    return fully_shard(m, mesh=mesh["dp"])


def ddp(m, size):
    return torch.nn.parallel.DistributedDataParallel(m)


def expert_parallel(m, size):
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = dist.device_mesh.init_device_mesh("cpu", (size // 2, 2), mesh_dim_names=("fsdp", "ep"))
    m.w1 = torch.nn.Parameter(distribute_tensor(m.w1.detach(), mesh["ep"], [Shard(0)]))
    return fully_shard(m, mesh=mesh["fsdp"])


def expert_rows(m, size):
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = dist.device_mesh.init_device_mesh("cpu", (size,))
    m.w1 = torch.nn.Parameter(distribute_tensor(m.w1.detach(), mesh, [Shard(1)]))
    return m


EXPERTS = {"experts": expert_parallel, "experts by rows": expert_rows}
WAYS = {"ddp": ddp, "fsdp2": fsdp, "hsdp": hsdp, "tp": tp, "fsdp2 x tp": fsdp_tp}


def steps_of(rank, size, way, want, momenta):
    """Compares this rank's parts with one rank's whole tensors after STEPS steps."""
    m = WAYS[way](Model(), size) if way in WAYS else EXPERTS[way](Experts(), size)
    with_optimizer = optimizer(m)
    for step in range(STEPS):
        inject(m, step)
        with_optimizer.step()
    assert with_optimizer.last_report.step == STEPS
    sizes = []
    for name, p in m.named_parameters():
        name = name.removeprefix("module.")
        same_part(name, p, want[name])
        if name in momenta:
            same_part(name, with_optimizer.state[p]["momentum_buffer"], momenta[name])
        if name in ("up.weight", "w1"):
            sizes = list(local_of(p).shape)
    with_optimizer.close()
    return sizes


def same_part(name, tensor, whole):
    whole = torch.from_numpy(whole)
    mine = cut_as(tensor, whole) if isinstance(tensor, dist.tensor.DTensor) else whole
    assert local_of(tensor).shape == mine.shape, name
    assert local_of(tensor).numpy().tobytes() == mine.numpy().tobytes(), name


def one_rank(make=Model, **settings):
    m = make()
    alone = optimizer(m, **settings)
    for step in range(STEPS):
        inject(m, step)
        alone.step()
    parameters = {name: full(p) for name, p in m.named_parameters()}
    momenta = {name: full(alone.state[p]["momentum_buffer"]) for name, p in m.named_parameters()
               if "momentum_buffer" in alone.state[p]}
    return parameters, momenta


@pytest.mark.parametrize("way, size", [("ddp", 2), ("fsdp2", 1), ("fsdp2", 2), ("fsdp2", 3),
                                       ("fsdp2", 4), ("hsdp", 4), ("tp", 2), ("fsdp2 x tp", 4),
                                       ("fsdp2 x tp", 6)])
def test_bits_of_one_rank(way, size):
    sizes = on_gloo(size, steps_of, way, *one_rank())
    if (way, size) == ("fsdp2 x tp", 6):
        # TP cuts 13 rows into 7 and 6, FSDP2 these into 3, 3, 1 and 2, 2, 2.
        assert [s[0] for s in sizes] == [3, 2, 3, 2, 1, 2]


@pytest.mark.parametrize("way, size, rows", [("experts", 4, [2, 1, 1, 1]),
                                             ("experts", 6, [1, 1, 1, 1, 1, 0]),
                                             ("experts by rows", 3, [5, 5, 5])])
def test_experts(way, size, rows):
    sizes = on_gloo(size, steps_of, way, *one_rank(Experts))
    assert [s[0] for s in sizes] == rows


STAGES = (("embed", "up"), ("down", "norm", "head"))


def stage_of(rank, size, want):
    """A pipeline of two stages, each with an optimizer over its own ranks."""
    from torch.distributed.fsdp import fully_shard

    mesh = dist.device_mesh.init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("pp", "dp"))
    m = Model()
    layers = STAGES[mesh["pp"].get_local_rank()]
    for layer in layers:
        fully_shard(getattr(m, layer), mesh=mesh["dp"])
    mine = [(name, p) for name, p in m.named_parameters() if name.split(".")[0] in layers]
    one = muonrt.torch.Muon(mine, lr=0.02, adamw_lr=0.01, role=role,
                            process_group=mesh["dp"].get_group())
    assert one._comm.size == size // 2
    for step in range(STEPS):
        inject(m, step)
        if layers == STAGES[0]:
            one.step()  # stages step in an order of their own
        dist.barrier()
        if layers == STAGES[1]:
            one.step()
    for name, p in mine:
        same_part(name, p, want[name])
    one.close()
    return layers


def test_an_optimizer_for_each_stage_of_a_pipeline():
    want, _ = one_rank()
    assert on_gloo(4, stage_of, want) == [STAGES[0], STAGES[0], STAGES[1], STAGES[1]]
