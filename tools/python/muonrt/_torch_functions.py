"""Passes torch tensors to the caller's gather and redistribute functions, and creates meshes from
process groups."""

import ctypes
from collections.abc import Callable

import torch
import torch.distributed as dist

import muonrt

DTYPES = {"float32": torch.float32, "uint16": torch.bfloat16}


def tensor_of(array) -> torch.Tensor | None:
    """Returns a tensor over the memory of an array that muonrt.Optimizer passes to a function."""
    if array is None:
        return None
    if not hasattr(array, "ctypes"):
        tensor = torch.from_dlpack(array)
        return tensor.view(torch.bfloat16) if tensor.dtype == torch.uint16 else tensor
    dtype = DTYPES[str(array.dtype)]
    if array.size == 0:
        return torch.empty(array.shape, dtype=dtype)
    # torch rejects read-only arrays and their DLPack capsules, so the tensor is made from the
    # address.
    memory = (ctypes.c_char * array.nbytes).from_address(array.ctypes.data)
    memory.owner = array  # keeps the memory alive
    return torch.frombuffer(memory, dtype=dtype).reshape(array.shape)


def over_tensors(function: Callable) -> Callable:
    """Wraps a function that receives tensors, so that muonrt.Optimizer can call it with arrays."""

    def call(name: str, owner: int, first, second, stream: int | None):
        with torch.no_grad():
            if stream is None:
                return function(name, owner, tensor_of(first), tensor_of(second))
            device = next(tensor_of(a).device for a in (first, second) if a is not None)
            with torch.cuda.stream(torch.cuda.ExternalStream(stream, device)):
                return function(name, owner, tensor_of(first), tensor_of(second))

    return call


def wrapped(options: dict) -> dict:
    """Converts options of muonrt.torch.Muon to options of muonrt.Optimizer."""
    return options | {key: over_tensors(options[key]) for key in ("gather", "redistribute")
                      if callable(options.get(key))}


def mesh_from_groups(process_group=None, **groups: "dist.ProcessGroup | None") -> muonrt.Mesh:
    """Builds a mesh from process groups. You need it for the layouts of plain tensors that are
    shards.

    Collective over `process_group`. The ranks in the mesh are ranks in this group, as muonrt.Layout
    requires.

    :param process_group: the ranks that hold the parameters, as for Muon. None: all ranks.
    :param groups: this rank's process group for each dimension of the mesh, by name and outermost
        first, such as ``dp=dp_pg, fsdp=fsdp_pg, tp=tp_pg``. A group that is None is omitted.
    """
    group = dist.group.WORLD if process_group is None else process_group
    number = {r: i for i, r in enumerate(dist.get_process_group_ranks(group))}
    mine = {name: dist.get_process_group_ranks(g) for name, g in groups.items() if g is not None}
    everywhere: list = [None] * len(number)
    dist.all_gather_object(everywhere, mine, group=group)
    for rank, theirs in enumerate(everywhere):
        if list(theirs) != list(everywhere[0]):
            raise muonrt.MismatchError(
                f"rank 0 has the groups {list(everywhere[0])}, but rank {rank} has {list(theirs)}; pass "
                "the same names on every rank")
        for name, ranks in theirs.items():
            if outside := set(ranks) - set(number):
                raise muonrt.InvalidArgumentError(
                    f"{name}: the group of rank {rank} has the ranks {sorted(outside)}, which are not in "
                    "process_group; pass the process_group of all ranks of the mesh")
    if not everywhere[0]:
        return muonrt.Mesh((len(number),), ["dp"])
    return muonrt.Mesh.from_groups(
        {name: [[number[r] for r in theirs[name]] for theirs in everywhere] for name in everywhere[0]})
