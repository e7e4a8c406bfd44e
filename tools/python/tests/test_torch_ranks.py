"""Tests muonrt.torch.Muon over gloo processes. With equal gradients, the results on every mesh are
bitwise identical to those of one rank."""

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch_models import (  # noqa: E402
    Experts,
    Model,
    drawn,
    fsdp,
    full,
    inject,
    one_rank,
    optimizer,
    role,
    same_part,
    train,
)
from torch_ranks import on_gloo  # noqa: E402

import muonrt.torch  # noqa: E402
from muonrt._torch_ranks import local_of  # noqa: E402

STEPS = 3


def hsdp(m, size):
    return fsdp(m, mesh=init_device_mesh("cpu", (2, size // 2),
                                         mesh_dim_names=("replicate", "shard")))


def tensor_parallel(m, mesh):
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    return parallelize_module(m, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})


def tp(m, size):
    return tensor_parallel(m, init_device_mesh("cpu", (size,)))


def fsdp_tp(m, size):
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (size // 2, 2), mesh_dim_names=("dp", "tp"))
    tensor_parallel(m, mesh["tp"])
    # Norm and head are sharded only over "dp", so each rank has its own submesh of "dp".
    return fully_shard(m, mesh=mesh["dp"])


def ddp(m, size):
    return torch.nn.parallel.DistributedDataParallel(m)


def flattened(m, size):
    """Shards over two dimensions of a mesh as if they were one, like torchtitan's dp_shard_cp."""
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("dp", "cp"))
    return fully_shard(m, mesh=mesh["dp", "cp"]._flatten("dp_cp"))


def of_a_whole_mesh(m, size):
    """Does the same as `flattened`, but all parameters are DTensors on the mesh of all ranks."""
    from torch.distributed.fsdp import DataParallelMeshDims, fully_shard
    from torch.distributed.tensor import Replicate, distribute_module

    mesh = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("dp", "cp"))
    assert all(p == Replicate() for q in distribute_module(m, mesh).parameters()
               for p in q.placements)
    return fully_shard(m, mesh=mesh, dp_mesh_dims=DataParallelMeshDims(shard=("dp", "cp")))


def expert_parallel(m, size):
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (size // 2, 2), mesh_dim_names=("fsdp", "ep"))
    m.w1 = torch.nn.Parameter(distribute_tensor(m.w1.detach(), mesh["ep"], [Shard(0)]))
    return fully_shard(m, mesh=mesh["fsdp"])


def expert_rows(m, size):
    from torch.distributed.tensor import Shard, distribute_tensor

    m.w1 = torch.nn.Parameter(distribute_tensor(m.w1.detach(), init_device_mesh("cpu", (size,)),
                                                [Shard(1)]))
    return m


# For each number of ranks: functions that shard the model, and each rank's rows of "up.weight", or
# its experts or rows of w1.
WAYS = {
    1: [(fsdp, [13])],
    2: [(ddp, [13, 13]), (fsdp, [7, 6]), (tp, [7, 6])],
    3: [(fsdp, [5, 5, 3]), (expert_rows, [3, 3, 2])],
    4: [(fsdp, [4, 4, 4, 1]), (hsdp, [7, 6, 7, 6]), (fsdp_tp, [4, 3, 3, 3]),
        (flattened, [4, 4, 4, 1]), (of_a_whole_mesh, [4, 4, 4, 1]),
        (expert_parallel, [2, 1, 1, 1])],
    # TP shards 13 rows as 7 and 6. FSDP2 shards the 7 rows as 3, 3, 1 and the 6 rows as 2, 2, 2.
    6: [(fsdp_tp, [3, 2, 3, 2, 1, 2]), (expert_parallel, [1, 1, 1, 1, 1, 0])]}


def each_way(rank, size, whole, whole_experts):
    """Compares this rank's shards after STEPS steps with the whole tensors of a run on one rank."""
    import torch.distributed.fsdp as fsdp2

    for way, rows in WAYS[size]:
        if way is of_a_whole_mesh and not hasattr(fsdp2, "DataParallelMeshDims"):
            continue  # exists only in later versions of torch
        of_experts = way in (expert_parallel, expert_rows)
        m = way(Experts() if of_experts else Model(), size)
        one = optimizer(m, sync=way is not fsdp)
        if way is hsdp:
            for step in range(STEPS):
                inject(m, step)
                one.prepare()
                one.compute()
                one.wait()
        else:
            train(m, range(STEPS), one)
            one.wait()
        assert one.last_report.step == STEPS
        want, momenta = whole_experts if of_experts else whole
        for name, p in m.named_parameters():
            name = name.removeprefix("module.")
            same_part((way.__name__, name), p, want[name])
            if name in momenta:
                same_part((way.__name__, name), one.state[p]["momentum_buffer"], momenta[name])
            if name in ("up.weight", "w1"):
                held = local_of(p).shape[1 if way is expert_rows else 0]
                assert held == rows[rank], (way.__name__, list(p.shape))
        one.close()


STAGES = (("embed", "up"), ("down", "norm", "head"))


def stages(rank, size, want):
    """Runs a pipeline of two stages. Each stage has an optimizer over its ranks."""
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("pp", "dp"))
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
            one.step()  # the stages run their steps in this order
        dist.barrier()
        if layers == STAGES[1]:
            one.step()
    for name, p in mine:
        same_part(name, p, want[name])
    one.close()


ROWS, BOUNDS, STACK = (11, 6), [0, 3, 11], (2, 5, 6)
SIDED = dict(muon={"scale_rule": "original", "normuon_axis": "rows"}, transport_dtype="float32")


def two_steps(rows, experts, layouts=None):
    """Runs two steps with experts, and with a matrix whose row bounds (BOUNDS) no DTensor can
    express."""
    part = {"rows": drawn(5, *ROWS)[rows].clone(), "experts": drawn(6, *STACK)[experts].clone()}
    named = {name: torch.nn.Parameter(p) for name, p in part.items()}
    layouts = layouts or {"rows": {}, "experts": {"view": "stack"}}
    one = muonrt.torch.Muon(named.items(), role=lambda name, p: ("muon", layouts[name]), **SIDED)
    for step in range(2):
        named["rows"].grad = drawn(50 + step, *ROWS)[rows].clone()
        named["experts"].grad = drawn(52 + step, *STACK)[experts].clone()
        one.step()
    one.close()
    return named["rows"].detach().numpy(), named["experts"].detach().numpy()


def shards_without_dtensor(rank, size, want_rows, want_experts):
    mesh = muonrt.Mesh((size,))
    rows, experts = slice(*BOUNDS[rank:rank + 2]), slice(rank, rank + 1)
    got = two_steps(rows, experts, {
        "rows": {"shape": ROWS, "layout": muonrt.Layout(mesh, row_bounds=BOUNDS)},
        "experts": {"shape": STACK, "view": "stack", "layout": muonrt.Layout(mesh, "S(0)")}})
    assert got[0].tobytes() == want_rows[rows].tobytes()
    assert got[1].tobytes() == want_experts[experts].tobytes()


def all_of(rank, size, whole, whole_experts, whole_tensors):
    each_way(rank, size, whole, whole_experts)
    if size == 4:
        stages(rank, size, whole[0])
    if size == 2:
        shards_without_dtensor(rank, size, *whole_tensors)


@pytest.mark.parametrize("size", WAYS)
def test_results_of_one_rank(size):
    everything = slice(None)
    on_gloo(size, all_of, one_rank(), one_rank(Experts), two_steps(everything, everything))


TOKENS = torch.arange(44) % 11


def losses_of(m, steps=30):
    one = optimizer(m)
    losses = []
    for _ in range(steps):
        one.zero_grad()
        loss = torch.nn.functional.cross_entropy(m(TOKENS).float(), TOKENS % 3)
        loss.backward()
        one.step()
        losses.append(loss.item())
    return losses, one


def policies(rank, size):
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy

    mixed = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    frozen = Model()
    frozen.embed.weight.requires_grad_(False)
    before = full(frozen.embed.weight)
    for name, m, policy, least in (
            ("mixed precision", Model(), {"mp_policy": mixed}, 2),
            ("bfloat16 shards", Model().bfloat16(), {}, 2),
            ("offload", Model(), {"offload_policy": CPUOffloadPolicy(pin_memory=False)}, 2),
            ("frozen", frozen, {}, 1.2)):
        dtype = m.up.weight.dtype
        losses, one = losses_of(fsdp(m, **policy))
        assert losses[-1] < losses[0] / least, (name, losses[::10])
        assert m.up.weight.dtype == dtype, name
        assert (dtype == torch.bfloat16) == ("master" in one.state[m.up.weight]), name
    assert all(p is not frozen.embed.weight for p in one._params)
    assert (full(frozen.embed.weight) == before).all()


def test_policies_of_fsdp2():
    on_gloo(2, policies)


def test_compile():
    eager, compiled = losses_of(Model(), 8), losses_of(torch.compile(Model(), backend="aot_eager"), 8)
    assert eager[0][-1] < eager[0][0]
    assert eager[0] == pytest.approx(compiled[0], rel=1e-4)  # the graph uses the new parameters
