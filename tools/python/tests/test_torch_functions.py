"""Tests the caller's functions over tensors, and meshes of process groups.
tools/examples/python/torch_functions.py trains with them."""

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402

import muonrt.torch  # noqa: E402
from torch_ranks import on_gloo  # noqa: E402


def meshes(rank, size):
    """Runs four ranks on a mesh dp x tp. Along tp, plain tensors are shards, and each tp group has
    a separate optimizer."""
    groups = {name: [dist.new_group(g) for g in lists]
              for name, lists in (("dp", [[0, 2], [1, 3]]), ("tp", [[0, 1], [2, 3]]))}
    dp, tp = groups["dp"][rank % 2], groups["tp"][rank // 2]
    mesh = muonrt.torch.mesh_from_groups(dp=dp, cp=None, tp=tp)
    assert (mesh.names, mesh.shape, mesh.ranks) == (["dp", "tp"], [2, 2], [0, 1, 2, 3])
    alone = muonrt.torch.mesh_from_groups(tp, tp=tp)  # ranks in the group, as for process_group=tp
    assert (alone.names, alone.shape, alone.ranks) == (["tp"], [2], [0, 1])
    assert muonrt.torch.mesh_from_groups().shape == [4]
    with pytest.raises(muonrt.MismatchError, match=r"rank 0 has the groups \['tp'\], but rank 1 has \['dp'\]"):
        muonrt.torch.mesh_from_groups(**({"dp": dp} if rank == 1 else {"tp": tp}))
    with pytest.raises(muonrt.InvalidArgumentError, match="dp: the group of rank 0 has the ranks"):
        muonrt.torch.mesh_from_groups(tp, dp=dp)

    whole = torch.arange(24.0).view(6, 4).sin()
    w = torch.nn.Parameter(whole[:, 2 * (rank % 2):][:, :2].contiguous())
    layout = {"layout": muonrt.Layout.from_names(mesh, tp_dim=1), "shape": (6, 4)}
    optimizer = muonrt.torch.Muon([("w", w)], role=lambda n, p: ("muon", layout | {"owner": 3, "priority": 2}))
    w.grad = w.detach().cos()
    optimizer.step()
    assert "3" in str(optimizer.plan())
    reference = torch.nn.Parameter(whole.clone())
    alone = muonrt.torch.Muon([("w", reference)], comm=muonrt.Comm.self(), role=lambda n, p: "muon")
    reference.grad = whole.cos()
    alone.step()
    assert torch.equal(w, reference[:, 2 * (rank % 2):][:, :2])
    faults(rank)


def faults(rank):
    """If a function raises an exception on one rank, all ranks raise an error, whose cause on this
    rank is the exception."""
    seen = []

    def gather(name, owner, local, full):
        assert not torch.is_grad_enabled() and local.dtype == torch.bfloat16
        seen.append((name, owner, tuple(local.shape), full is None))
        if rank == 2:
            raise KeyError("planted")
        if full is not None:
            full.copy_(local)

    w = torch.nn.Parameter(torch.ones(3, 2))  # replicated, so any replica may be the source
    optimizer = muonrt.torch.Muon([("w", w)], role=lambda n, p: "muon", assign=lambda info: 1, gather=gather,
                                  redistribute=lambda name, owner, full, local: None, async_parallelism=False)
    w.grad = torch.ones(3, 2)
    with pytest.raises(muonrt.CallbackError, match="'w': gather returned 1") as raised:
        optimizer.step()
    assert repr(raised.value.__cause__) == ("KeyError('planted')" if rank == 2 else "None")
    assert seen == [("w", 1, (3, 2), rank != 1)] and torch.equal(w, torch.ones(3, 2))


def test_groups_and_faults():
    on_gloo(4, meshes)


def test_arguments_are_checked():
    w = [("w", torch.nn.Parameter(torch.ones(3, 2)))]
    for options, says in (({"gathers": 1}, "'gather'"), ({"assign": 1}, "assign is 1; pass a function"),
                          ({"gather": 1}, "gather is 1; pass a function")):
        with pytest.raises((TypeError, muonrt.InvalidArgumentError), match=says):
            muonrt.torch.Muon(w, role=lambda n, p: "muon", **options)
