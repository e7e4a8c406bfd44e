"""Implements muonrt.plan(), which predicts the communication, memory use and step time of Muon for
a model on a mesh. It runs no ranks, uses little memory and needs no GPU."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from . import _errors
from ._core import Group, Layout, Mesh, Param, Plan, _machine_text, route


def plan(model: "Mapping[str, Sequence[int]] | Any", mesh: "str | Mapping[str, int]", *,
         experts: "str | Mapping[str, int] | None" = None, dtype: str | None = None,
         grad_dtype: str = "", master_kind: str = "auto", muon: dict[str, Any] | None = None,
         adamw: dict[str, Any] | None = None, machine: str | None = None, **options: Any) -> Plan:
    """Computes the plan of an optimizer for a model on a mesh, in this process.

    Example: ``with torch.device("meta"): model = Model(...)``, then
    ``muonrt.plan(model, "dp=2,fsdp=8,tp=4", dtype="bfloat16").rank(0)["total_bytes"]``.

    :param model: a torch.nn.Module, on any device (also "meta"), or a dict of names and shapes. For
        a module, parameters have the roles that muonrt.torch.Muon would assign. For a dict, they
        have the roles that muonrt.route() returns.
    :param mesh: the size of each named dimension, as text or as a dict. The documentation of
        muonrt_placements_for_tensor() explains the names. With pipeline parallelism, pass the model
        and the mesh of one stage.
    :param experts: the mesh of expert stacks, over the same ranks. If it has fewer ranks than
        ``mesh``, the remaining ranks hold replicas. None: ``mesh``.
    :param dtype: "float32" or "bfloat16". None: the dtype of each parameter; "float32" for a dict.
    :param grad_dtype: dtype of gradients. Default: the dtype of the parameter.
    :param master_kind: how the optimizer stores the bits of the weights that ``dtype`` cannot hold;
        see muonrt.Param.
    :param muon: settings of muonrt.Group for Muon.
    :param adamw: settings of muonrt.Group for AdamW.
    :param machine: the machine that ``Plan.time()`` and replica_mode="auto" assume: a name such as "h100", the path
        of a profile \\*.json (``muonrt bench calibrate`` writes one), or its JSON text. The default of
        ``device`` is the machine's device. Example:
        ``muonrt.plan(model, "fsdp=64", machine="h100").time()["step_seconds"]``.
    :param options: settings of muonrt.Optimizer, such as device="cuda" or chunk_bytes.
    """
    dense = _mesh(mesh, "mesh")
    world = math.prod(dense.shape)
    stacks = dense if experts is None else _experts(_mesh(experts, "experts"), world)
    params = []
    for name, shape, own_dtype, role, settings in _tensors(model):
        expert = role == "muon" and settings.get("view") == "stack" and len(shape) == 3
        layout = Layout.for_tensor(stacks if expert else dense, shape, name, expert,
                                   bool(settings.get("transposed", False)))
        params.append(Param(name, None, shape=shape, dtype=dtype or own_dtype, grad_dtype=grad_dtype,
                            master_kind=master_kind, layout=layout, group=int(role != "muon"), **settings))
    groups = [Group("muon", **(muon or {})), Group("adamw", **(adamw or {}))]
    if machine is None:
        return Plan(params, groups, world, **options)
    text, device = _machine(machine)
    out = Plan(params, groups, world, **{"device": device, "machine": text, **options})
    out.machine = text
    return out


def _machine(given: str) -> tuple[str, str]:
    """Returns the name or the JSON text of a machine, and its device."""
    if not isinstance(given, str):
        raise TypeError(f"machine is {given!r}; pass a str")
    given = _machine_text(given)
    if not given.lstrip().startswith("{"):
        return given, "host" if given == "host" else "cuda"
    try:
        return given, str(json.loads(given).get("device", "host"))
    except ValueError:
        return given, "host"  # Plan() raises the error


def _mesh(given, what: str) -> Mesh:
    if isinstance(given, str):
        pairs = [item.partition("=") for item in given.split(",") if item]
        if not all(size.isdecimal() for _, _, size in pairs):
            raise _errors.InvalidArgumentError(
                f"{what} is {given!r}; write name=size for each dimension, such as 'dp=2,fsdp=4'")
        pairs = [(name.strip(), int(size)) for name, _, size in pairs]
    else:
        pairs = list(given.items())
    pairs = pairs or [("dp", 1)]
    return Mesh([size for _, size in pairs], [name for name, _ in pairs])


def _experts(mesh: Mesh, world: int) -> Mesh:
    size = math.prod(mesh.shape)
    if size < 1 or world % size:
        raise _errors.InvalidArgumentError(
            f"experts has {size} ranks, but mesh has {world}, which is not a multiple of them; let the "
            "sizes of experts divide it")
    if size == world:
        return mesh
    name = next(n for n in ("dp_replicate", "replicate", "hsdp_replicate", "dp") if n not in mesh.names)
    return Mesh([world // size, *mesh.shape], [name, *mesh.names])


def _tensors(model):
    """Yields the name, shape, dtype, role and settings of muonrt.Param for each parameter."""
    if isinstance(model, Mapping):
        for name, shape in model.items():
            shape = [int(n) for n in shape]
            role, view = ("adamw", "none") if sum(n > 1 for n in shape) < 2 else route(name, len(shape))
            yield name, shape, "float32", role, {"view": view} if role == "muon" else {}
        return
    from . import _torch_roles

    role_of = _torch_roles.of_module(model, None)
    for name, p in model.named_parameters():
        if p.requires_grad:
            role, settings = _torch_roles.role_of(name, p, None, role_of, {})
            yield name, list(p.shape), str(p.dtype).removeprefix("torch."), role, dict(settings)
