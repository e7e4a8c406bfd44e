"""Handles parameters that FSDP1 (FullyShardedDataParallel) has sharded. Each rank holds a range of
the elements of such a parameter."""

import contextlib
import gc
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

import muonrt


@dataclass(frozen=True)
class FlatShard:
    """This rank's shard of a parameter, which is part of a flat parameter of FSDP1."""

    handle: Any  # torch's FlatParamHandle, which holds the metadata
    index: int

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.handle.flat_param._shapes[self.index])

    def elements(self) -> tuple[int, int]:
        """Returns the range of elements that this rank holds."""
        info = self.handle.flat_param._shard_param_infos[self.index]
        return (info.intra_param_start_idx, info.intra_param_end_idx + 1) if info.in_shard else (0, 0)

    def has_gradient(self) -> bool:
        """Returns whether the parameter has a gradient, even if this shard is empty. FSDP1 does not
        set ``grad`` of an empty shard."""
        flat = self.handle.flat_param
        return self.handle.sharded_grad is not None and not flat._is_grad_none_mask[self.index]


def shards_of(params: list, module: "torch.nn.Module | None") -> dict[int, FlatShard]:
    """Returns the shards of the parameters that FSDP1 has sharded, as a dict with the ids of the
    parameters as keys."""
    entries = [pair for e in params for pair in (e.get("params", ()) if isinstance(e, dict) else (e,))]
    for name, p in entries:
        if getattr(p, "_is_flat_param", False):
            raise muonrt.NotSupportedError(
                f"param '{name}' is a flat parameter of FSDP1 (FullyShardedDataParallel), which does not "
                "show the matrices in it; pass use_orig_params=True to FSDP, or use fully_shard (FSDP2)")
    if not any(getattr(p, "_fsdp_flattened", False) for _, p in entries):
        return {}
    kind = sys.modules["torch.distributed.fsdp"].FullyShardedDataParallel
    modules = gc.get_objects() if module is None else module.modules()
    handles = [m._handle for m in modules if issubclass(type(m), kind) and m._handle is not None]
    ids = {id(p): name for name, p in entries}
    found = {}
    for handle in handles:
        flat = handle.flat_param
        for index, p in enumerate(flat._params or ()):
            if id(p) not in ids or not handle.uses_sharded_strategy:
                continue
            if flat._param_extensions[index] is not None:
                raise muonrt.NotSupportedError(
                    f"param '{ids[id(p)]}' is a DTensor that FSDP1 shards again; use fully_shard (FSDP2)")
            found[id(p)] = FlatShard(handle, index)
    return found


@contextlib.contextmanager
def whole(shards: dict[int, FlatShard], params: list) -> Iterator[tuple[list, dict]]:
    """Until the context ends, replaces each shard, also in the modules, with a meta tensor of the
    shape of the whole parameter, because shapes determine roles. Yields the new list of parameters,
    and a dict from the id of each replacement to the original parameter."""
    twins, originals, places = {}, {}, []

    def pair_of(name: str, p: torch.Tensor) -> tuple:
        return name, twins.get(id(p), p)

    for key, shard in shards.items():
        flat = shard.handle.flat_param
        p = flat._params[shard.index]
        meta = torch.empty(shard.shape, dtype=p.dtype, device="meta")
        twins[key] = torch.nn.Parameter(meta, requires_grad=p.requires_grad)
        originals[id(twins[key])] = p
        shared = [(i.module, i.param_name) for q, i in zip(flat._shared_params, flat._shared_param_infos)
                  if q is p]
        info = flat._param_infos[shard.index]
        for module, name in [(info.module, info.param_name), *shared]:
            places.append((module._parameters, name, p))
            module._parameters[name] = twins[key]
    try:
        yield [{**e, "params": [pair_of(*pair) for pair in e["params"]]} if "params" in e else e
               if isinstance(e, dict) else pair_of(*e) for e in params], originals
    finally:
        for registered, name, p in places:
            registered[name] = p


def layout_of(name: str, everywhere: list) -> muonrt.Layout:
    """Returns the layout of a parameter, given the shard of each rank."""
    if any(shard is None or not shard.placements.startswith("flat") for shard in everywhere):
        raise muonrt.MismatchError(f"param '{name}' is a shard of FSDP1 on some ranks only; wrap the "
                                   "model the same way on all ranks")
    groups = sorted({shard.ranks for shard in everywhere})
    size = len(groups[0])
    mesh = muonrt.Mesh((len(groups), size), ["dp", "fsdp"], [r for group in groups for r in group])
    ranges = [tuple(map(int, everywhere[r].placements.split()[1:])) for r in groups[0]]
    return muonrt.Layout(mesh, flat=ranges, over="fsdp")


def placement_of(shard: FlatShard, number: dict[int, int]) -> tuple:
    """Returns the description of a shard that each rank sends to the others: mesh shape, ranks, and
    the range of elements."""
    ranks = [number[r] for r in dist.get_process_group_ranks(shard.handle.process_group)]
    begin, end = shard.elements()
    return (len(ranks),), tuple(ranks), f"flat {begin} {end}"
