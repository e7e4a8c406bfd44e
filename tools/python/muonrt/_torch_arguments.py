"""Checks and completes the arguments of muonrt.torch.Muon: parameter names, options and process
group."""

import ctypes
import difflib
import gc
import inspect
import math
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypedDict

import torch
import torch.distributed as dist

import muonrt
from muonrt._torch_models import unwrapped

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# Prefixes that torch.compile, FSDP1 and activation checkpointing add to names of parameters.
WRAPPERS = ("_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")

# Maps arguments of other optimizers to advice on what to pass to muonrt.torch.Muon instead.
OTHER_NAMES = {
    "ns_steps": "pass muon={'steps': ...}",
    "backend_steps": "pass muon={'steps': ...}",
    "ns_coefficients": "pass muon={'coefficients': 'custom', 'custom': [a, b, c, ...], 'steps': n}",
    "adjust_lr_fn": "pass muon={'scale_rule': 'original'} or 'match_rms'",
    "adjust_lr": "pass muon={'scale_rule': ...}: 'match_rms' for 'rms_norm', 'ratio' for 'spectral_norm'",
    "rms_scale": "pass muon={'scale_rule': 'match_rms'}",
    "matched_adamw_rms": "pass muon={'scale_rule': 'match_rms', 'scale_factor': ...}",
    "mu": "pass momentum=",
    "epsilon": "pass eps= for AdamW, or muon={'normalize_eps': ...}",
    "beta1": "pass betas=",
    "beta2": "pass betas=",
    "adam_betas": "pass betas=",
    "adamw_betas": "pass betas=",
    "adam_eps": "pass eps=",
    "adamw_eps": "pass eps=",
    "wd": "pass weight_decay=",
    "adamw_wd": "pass adamw_weight_decay=",
    "learning_rate": "pass lr=",
    "adam_lr": "pass adamw_lr=",
    "algorithm": "pass role= with 'muon' or 'adamw'",
    "use_muon": "pass role= with 'muon' or 'adamw'",
    "muon_params": "pass model.named_parameters() and role=",
    "adamw_params": "pass model.named_parameters() and role=",
    "flatten": "return ('muon', 'flatten') from role=",
    "distributed_mesh": "omit it: DTensors have their mesh; process_group= selects ranks",
    "rank": "omit it: the process group has the ranks",
    "world_size": "omit it: the process group has the ranks",
    "use_gram_newton_schulz": "pass muon={'form': 'gram'}",
    "use_triton": "omit it: CUDA kernels are built in",
    "foreach": "omit it: every step updates all parameters together",
    "fused": "omit it: every step updates all parameters together",
    "capturable": "omit it, or pass graphs=True",
    "differentiable": "omit it: steps cannot be differentiated",
    "maximize": "negate the loss",
    "amsgrad": "omit it: AdamW of muonrt has no amsgrad",
    "model": "pass the model as params",
}


class Options(TypedDict, total=False):
    """The settings that muonrt.torch.Muon forwards to muonrt.Optimizer."""

    device: str
    device_index: int
    threads: int
    timeout_ms: int
    clip_norm: float
    commit: str
    window: int
    chunk_bytes: int
    transport_dtype: str
    iteration_dtype: str
    replica_mode: str
    replica_check: str
    max_peers: int
    omit_inactive: bool
    machine: str
    portable_gemm: bool
    seed: int
    health_every: int
    trace: bool
    poison: bool
    graphs: bool
    symmetric: str
    assign: "Callable[[muonrt.AssignInfo], int | Sequence[int]] | None"
    gather: "Callable[[str, int, torch.Tensor, torch.Tensor | None], None] | None"
    redistribute: "Callable[[str, int, torch.Tensor | None, torch.Tensor], None] | None"
    async_parallelism: bool
    prefetch_count: int


# The upper limit of each numeric setting of a group, exclusive. "betas" consists of two numbers.
LARGEST = {"lr": 1e30, "weight_decay": 1e30, "eps": 1e30, "momentum": 1.0, "betas": 1.0}


def check_number(what: str, value: Any, below: float) -> None:
    """Raises an error unless the value is a number that is at least 0 and less than `below`, before
    and after rounding to float32. Rejects booleans and strings, although float() accepts them."""
    is_bool = isinstance(value, bool) or str(getattr(value, "dtype", "")).endswith("bool")
    try:
        out = math.nan if is_bool or isinstance(value, (str, bytes)) else float(value)
    except (TypeError, ValueError, RuntimeError):
        out = math.nan
    if not 0 <= out < below or ctypes.c_float(out).value >= below:
        raise muonrt.InvalidArgumentError(f"{what} is {value!r}; pass a number from 0 and below {below:g}")


def check_numbers(settings: dict[str, Any], what: str = "{}") -> None:
    """Checks the settings in LARGEST, and nesterov.

    :param what: the description of a setting in error messages; the setting's key replaces {}. """
    for key, value in settings.items():
        if key == "nesterov" and value not in (False, True):
            raise muonrt.InvalidArgumentError(f"{what.replace('{}', key)} is {value!r}; pass True or False")
        below = LARGEST.get(key.removeprefix("adamw_"))
        if below is None:
            continue
        if key == "betas" and (not isinstance(value, (tuple, list)) or len(value) != 2):
            raise muonrt.InvalidArgumentError(
                f"{what.replace('{}', key)} is {value!r}; pass a pair of numbers, such as (0.9, 0.95)")
        for i, one in enumerate(value if key == "betas" else [value]):
            if key.endswith("eps") and isinstance(one, float) and 0 < one < 1e-37:
                raise muonrt.InvalidArgumentError(
                    f"{what.replace('{}', key)} is {one}, which vanishes in float32; pass 0 or a number "
                    "from 1e-37")
            check_number(what.replace("{}", f"betas[{i}]" if key == "betas" else key), one, below)


def reject_unknown(what: str, given: Iterable[str], known: "Sequence[str]", *,
                   keeps_others: bool = False) -> None:
    """Rejects names that other optimizers use, and names that resemble a known one.

    keeps_others: whether to accept all other names, because a trainer can add entries such as
        "initial_lr" to a group. If it is True, "fused" and "foreach" are accepted too, although other
        optimizers use them: torchtitan sets them in each group, and they do not affect results.
    """
    for name in given:
        if name in known or keeps_others and name in ("foreach", "fused"):
            continue
        if name in OTHER_NAMES:
            raise TypeError(f"{what} has no '{name}'; {OTHER_NAMES[name]}")
        close = difflib.get_close_matches(name, known, 1, 0.84 if keeps_others else 0.6)
        if close:
            raise TypeError(f"{what} has no '{name}'; pass '{close[0]}' if you mean this")
        if not keeps_others:
            raise TypeError(f"{what} has no '{name}'; use one of {', '.join(known)}")


def clean(name: str) -> str:
    """Returns the name that a parameter has in the module without wrappers."""
    for part in WRAPPERS:
        name = name.replace(part, "")
    return name


def named(params: Any) -> tuple[list, "torch.nn.Module | None"]:
    """Returns the parameters as (name, parameter) pairs or as groups of such pairs, and their module if it is
    known."""
    module = unwrapped(params) if isinstance(params, torch.nn.Module) else None
    if module is not None:
        params = module.named_parameters()
    elif inspect.isgenerator(params) and params.gi_frame is not None:
        # named_parameters() and parameters() return generators. Before such a generator starts, its
        # frame refers to the module.
        found = params.gi_frame.f_locals
        if isinstance(found.get("self"), torch.nn.Module) and not found.get("prefix"):
            module = found["self"]
    if isinstance(params, torch.Tensor):
        raise muonrt.InvalidArgumentError(
            f"params is one tensor of shape {tuple(params.shape)}; pass model.named_parameters()")
    entries = list(params)
    groups = [e if isinstance(e, dict) else {"params": [e]} for e in entries]
    members = []
    for group in groups:
        if isinstance(group.get("params"), (set, frozenset)):
            raise muonrt.InvalidArgumentError(
                "'params' of a group is a set, whose order differs between ranks; pass a list")
        if "params" not in group:
            continue
        held = group["params"]
        held = [held] if isinstance(held, torch.Tensor) else list(held)
        if (names := group.get("param_names")) is not None:
            if len(names) != len(held):
                raise muonrt.InvalidArgumentError(
                    f"a group has {len(held)} params, but {len(names)} param_names; pass one name "
                    "for each")
            held = [p if isinstance(p, tuple) else (name, p) for name, p in zip(names, held)]
        members.append(held)
    unnamed = [p for held in members for p in held if isinstance(p, torch.Tensor)]
    names, owner = names_of(unnamed, module) if unnamed else ({}, None)
    module = owner if module is None else module
    pairs = [[(names[id(p)], p) if isinstance(p, torch.Tensor) else (clean(str(p[0])), p[1])
              for p in held] for held in members]
    if not entries or not isinstance(entries[0], dict):
        return [pair for held in pairs for pair in held], module
    given = iter(pairs)
    return [{**{k: v for k, v in e.items() if k != "param_names"}, "params": next(given)}
            if "params" in e else e for e in entries], module


def names_of(tensors: list, module: "torch.nn.Module | None" = None) -> tuple[dict, Any]:
    """Finds the names of parameters that were passed without names, for example by Hugging Face's
    Trainer or torchtitan. Returns {id of a parameter: name}, and the module that contains the
    parameters."""
    wanted = {id(p) for p in tensors}

    def names_in(m) -> dict:
        return {id(p): clean(name) for name, p in m.named_parameters() if id(p) in wanted}

    modules = [module] if module is not None else [
        m for m in gc.get_objects() if issubclass(type(m), torch.nn.Module)
        and any(id(p) in wanted for p in m.__dict__.get("_parameters", {}).values())]
    if module is None:  # the modules that contain all of the parameters
        everything = [m for m in gc.get_objects() if issubclass(type(m), torch.nn.Module)
                      and "_modules" in m.__dict__] if modules else []
        whole = [m for m in everything if len(names_in(m)) == len(wanted)]
        inner = {id(c) for m in whole for c in m.modules() if c is not m}
        wraps = (torch.nn.parallel.DistributedDataParallel,)
        roots = [m for m in whole if id(m) not in inner]
        # A wrapper has one child, which is the model.
        roots = [next(iter(m.children())) if isinstance(m, wraps) else m for m in roots]
        modules = sorted(roots, key=lambda m: (max(map(len, names_in(m).values())), str(type(m))))
    for m in modules[:1]:
        found = names_in(m)
        if len(found) == len(wanted):
            return found, m
    raise muonrt.InvalidArgumentError(
        f"a parameter of shape {tuple(tensors[0].shape)} has no name, and no module was found that has "
        "all of these parameters; pass model.named_parameters(), pairs of name and parameter, or "
        "'param_names' in each group")


def require_process_group(process_group, comm) -> None:
    """Raises an error if this rank cannot use the process group, or if torch.distributed is not
    initialized although the launcher has started multiple ranks."""
    if comm is not None:
        if not isinstance(comm, muonrt.Comm):
            raise muonrt.InvalidArgumentError(f"comm is {type(comm).__name__}; pass a muonrt.Comm")
        if process_group is not None:
            raise muonrt.InvalidArgumentError(
                "comm and process_group are both set; pass the one that has the ranks")
        return
    ready = dist.is_available() and dist.is_initialized()
    if process_group is not None:
        if not ready:
            raise muonrt.InvalidArgumentError(
                "process_group is set, but torch.distributed is not initialized; call "
                "torch.distributed.init_process_group() first")
        if not isinstance(process_group, dist.ProcessGroup):
            how = "pass mesh.get_group()" if hasattr(process_group, "get_group") \
                else "pass a group of torch.distributed.new_group() that has this rank"
            raise muonrt.InvalidArgumentError(
                f"process_group is {process_group!r} on rank {dist.get_rank()}; {how}")
        if dist.get_rank(process_group) < 0:
            raise muonrt.InvalidArgumentError(
                f"process_group has the ranks {dist.get_process_group_ranks(process_group)}, but not "
                f"this rank {dist.get_rank()}; pass a group that has it")
    size = os.environ.get("WORLD_SIZE", "")
    if not ready and "RANK" in os.environ and size.isdigit() and int(size) > 1:
        raise muonrt.InvalidStateError(
            f"WORLD_SIZE is {size}, but torch.distributed is not initialized, so each process would "
            "train by itself; call torch.distributed.init_process_group() before, or pass "
            "comm=muonrt.Comm.self()")


def require_alone() -> None:
    """Raises an error if the optimizer was created for one rank, but torch.distributed now has
    more."""
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        raise muonrt.InvalidStateError(
            f"the optimizer was created before init_process_group(), so it has one rank, but the world "
            f"has {dist.get_world_size()}; create it after init_process_group(), or pass "
            "comm=muonrt.Comm.self()")
