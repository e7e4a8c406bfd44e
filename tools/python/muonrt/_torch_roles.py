"""Determines which parameters muonrt.torch.Muon updates with Muon, and how their tensors form
matrices."""

import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch

import muonrt
from muonrt import _torch_ranks as ranks
from muonrt._torch_arguments import reject_unknown
from muonrt._torch_models import ModelRoles, of_name, unwrapped

# DIMS: the settings of muonrt.Param that a group can contain. PARAM_SETTINGS: those that a role can
# contain.
DIMS = ("transposed", "batch_dims", "row_dims")
PARAM_SETTINGS = ("view", *DIMS, "parts", "qk_clip", "lr_factor", "normuon_axis", "layout", "shape",
                  "owner", "priority")

# The settings of a param_group that a trainer may change between steps. All other settings are
# fixed.
CHANGING = {"muon": ("lr", "weight_decay", "momentum", "nesterov"),
            "adamw": ("lr", "weight_decay", "betas", "eps")}
# The values of settings that neither the caller nor the preset sets.
DEFAULTS = {"muon": dict(weight_decay=0.1, momentum=0.95, nesterov=True),
            "adamw": dict(weight_decay=0.01, betas=(0.9, 0.95), eps=1e-8)}

GROUP_KEYS = ("params", "param_names", "role", *DIMS, "adamw_lr", "adamw_weight_decay",
              *CHANGING["muon"], *CHANGING["adamw"])

Role = Callable[[str, torch.Tensor], "str | tuple[str, str | dict[str, Any]] | None"]


class Settings(dict):
    """Holds the settings of muonrt.Param for a parameter, and the reason for its role."""

    reason = ""


class RoleOfModel:
    """A role function that calls the caller's function. `model` contains the roles that follow from
    the model's modules."""

    def __init__(self, model: torch.nn.Module, role: Role | None):
        self.model, self.role = ModelRoles(model), role

    def __call__(self, name: str, p: torch.Tensor):
        return self.role(name, p) if self.role else None


def of_module(module: "torch.nn.Module | None", role: Role | None) -> Role | None:
    """Returns a role function that also considers the modules, if the model is known."""
    return role if module is None else RoleOfModel(unwrapped(module), role)


def role_of(name: str, p: torch.Tensor, group_role, role: Role | None,
            dims: dict) -> tuple[str, Settings]:
    """Returns "muon" or "adamw", and the settings of muonrt.Param for the tensor."""
    chosen, reason = role(name, p) if role else None, "chosen by role="
    if chosen is None and group_role is not None:
        chosen, reason = group_role, "role of its group"
    if chosen is None:
        of = role.model.of if isinstance(role, RoleOfModel) else of_name
        try:
            if p.ndim > 2 and (dims.get("batch_dims") or dims.get("row_dims")):
                # The group states how the dimensions form matrices, so the role depends only on the
                # name.
                kind, _, reason = muonrt._core._route_and_reason(name, 2)
                chosen = (kind, {})
            else:
                *chosen, reason = of(name, p)
                chosen = tuple(chosen)
        except muonrt.InvalidArgumentError:
            raise muonrt.InvalidArgumentError(
                f"param '{name}': neither name nor module shows what the {p.ndim} dimensions of shape "
                f"{tuple(p.shape)} are; return its role with role=, for example ('muon', 'stack'), or "
                "set 'role', 'batch_dims' or 'row_dims' of its group") from None
    pair = (chosen, {}) if isinstance(chosen, str) else chosen
    if not isinstance(pair, tuple) or len(pair) != 2:
        raise muonrt.InvalidArgumentError(
            f"param '{name}': the role is {chosen!r}; use 'muon', 'adamw', or a pair of one of these "
            "and a dict of settings")
    kind, settings = pair
    if kind not in ("muon", "adamw"):
        raise muonrt.InvalidArgumentError(
            f"param '{name}': the role is {kind!r}; use 'muon' or 'adamw'")
    if isinstance(settings, str):
        settings = {} if settings == "none" else {"view": settings}
    if unknown := set(settings) - set(PARAM_SETTINGS):
        raise muonrt.InvalidArgumentError(
            f"param '{name}': a role has no setting {sorted(unknown)}; use {PARAM_SETTINGS}")
    if kind == "adamw" and (of_muon := set(settings) & {"view", *DIMS}):
        raise muonrt.InvalidArgumentError(
            f"param '{name}': role 'adamw' cannot be combined with {sorted(of_muon)}, which only Muon "
            "uses; omit these settings")
    for key, value in (dims | settings).items():
        types = {"transposed": bool, "batch_dims": int, "row_dims": int}
        if key in DIMS and type(value) is not types[key]:
            raise muonrt.InvalidArgumentError(
                f"param '{name}': {key} is {value!r}; pass a value of type {types[key].__name__}")
    if "layout" in settings and ranks.is_dtensor(p):
        raise muonrt.InvalidArgumentError(
            f"param '{name}': a layout is set, but the DTensor has placements {p.placements}; set a "
            "layout only for plain tensors, which are the shard of each rank")
    out = Settings((dims if kind == "muon" else {}) | settings)
    out.reason = reason
    return kind, out


def describe(optimizer) -> str:
    """Returns a table with the name, shape and role of each parameter, and the reason for the
    role."""
    rows = [("parameter", "shape", "role", "why")]
    kinds = [group["role"] for group in optimizer.param_groups for _ in group["params"]]
    for name, p, kind, settings in zip(optimizer._names, optimizer._params, kinds,
                                       optimizer._param_settings):
        how = [str(settings["view"])] if "view" in settings else []
        how += ["transposed"] if settings.get("transposed") else []
        how += [f"{len(settings['parts'])} parts"] if settings.get("parts") else []
        rows.append((name, " x ".join(map(str, optimizer._shape_of(p))) or "scalar", ", ".join([kind, *how]),
                     settings.reason))
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    return "\n".join("  ".join([*(c.ljust(w) for c, w in zip(row, widths)), row[3]]) for row in rows)


def split(params: Iterable, role: Role | None) -> list[tuple[str, list[tuple], dict]]:
    """Splits each of the caller's groups by role. For each new group, returns its role, its
    parameters (name, settings of muonrt.Param, parameter), and its settings."""
    out = []
    entries = list(params)
    if not entries or not isinstance(entries[0], dict):
        entries = [{"params": entries}]
    for entry in entries:
        if "params" not in entry:
            raise muonrt.InvalidArgumentError(
                f"a group has no 'params', only {sorted(entry)}; add 'params'")
        members: dict[str, list] = {"muon": [], "adamw": []}
        rest = {k: v for k, v in entry.items() if k not in ("params", "role", *DIMS)}
        dims = {k: entry[k] for k in DIMS if k in entry}
        for item in entry["params"]:
            if isinstance(item, torch.Tensor):
                raise muonrt.InvalidArgumentError(
                    f"a parameter of shape {tuple(item.shape)} has no name, which decides its role; "
                    "pass model.named_parameters() or the model, or pairs of name and parameter")
            name, p = item
            if p.requires_grad:
                kind, settings = role_of(name, p, entry.get("role"), role, dims)
                members[kind].append((name, settings, p))
        for kind, named in members.items():
            if named:
                reject_unknown("a group", rest, GROUP_KEYS, keeps_others=True)
                # For AdamW, "adamw_lr" and "adamw_weight_decay" override "lr" and "weight_decay".
                # Unknown keys belong to the caller and are kept.
                of_adamw = {k: rest[f"adamw_{k}"] for k in ("lr", "weight_decay")
                            if kind == "adamw" and f"adamw_{k}" in rest}
                others = set(CHANGING["muon"] + CHANGING["adamw"]) - set(CHANGING[kind])
                skipped = others | {"adamw_lr", "adamw_weight_decay"}
                out.append((kind, named, {k: v for k, v in rest.items() if k not in skipped}
                            | of_adamw))
    return out


def warn_of_conv1d(groups: list[dict], param_settings: list[dict], muon: dict) -> None:
    """Warns if the name and the shape of a parameter suggest a Conv1D weight of GPT-2. Does nothing
    if no setting distinguishes rows from columns."""
    if muon.get("scale_rule") not in ("original", "ratio") \
            and muon.get("normuon_axis", "off") == "off" and not muon.get("block_period"):
        return
    named = [(group["role"], *pair) for group in groups for pair in group["params"]]
    for (kind, name, p), settings in zip(named, param_settings):
        if kind == "adamw" or p.ndim != 2 or "transposed" in settings:
            continue
        wide = p.shape[0] < p.shape[1] and ("c_attn" in name or "c_fc" in name)
        if wide or p.shape[0] > p.shape[1] and "c_proj" in name:
            warnings.warn(f"param '{name}': the shape is {tuple(p.shape)}, so the weight seems to be "
                          "stored as inputs x outputs (GPT-2's Conv1D); set transposed=True or False "
                          "in the group or role of these weights", stacklevel=4)
            return
