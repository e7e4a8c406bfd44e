"""Which parameters of muonrt.torch.Muon get Muon, and how their tensors are read as matrices."""

import warnings
from collections.abc import Callable
from typing import Any

import torch

import muonrt
from muonrt import _torch_ranks as ranks

# What a group may say of the matrices in it, and what a role may.
DIMS = ("transposed", "batch_dims", "row_dims")
READING = ("view", *DIMS, "parts", "qk_clip", "lr_factor", "normuon_axis", "layout", "shape")

Role = Callable[[str, torch.Tensor], "str | tuple[str, str | dict[str, Any]] | None"]


def role_of(name: str, p: torch.Tensor, group_role, role: Role | None,
            dims: dict) -> tuple[str, dict]:
    """"muon" or "adamw", and what muonrt.Param is told of the tensor."""
    chosen = role(name, p) if role else None
    if chosen is None and group_role is not None:
        chosen = group_role
    if chosen is None:
        # Where a group tells what the dimensions are, only the name is asked.
        told = p.ndim > 2 and (dims.get("batch_dims") or dims.get("row_dims"))
        try:
            chosen = muonrt.route(name, 2 if told else p.ndim)
        except muonrt.InvalidArgumentError as error:
            raise muonrt.InvalidArgumentError(
                f"{error}; tell it by role=, for instance ('muon', 'stack')") from None
    pair = (chosen, {}) if isinstance(chosen, str) else chosen
    if not isinstance(pair, tuple) or len(pair) != 2:
        raise muonrt.InvalidArgumentError(
            f"param '{name}': role {chosen!r}; use 'muon', 'adamw', or a pair of one of these and "
            "a dict of settings")
    kind, reading = pair
    if kind not in ("muon", "adamw"):
        raise muonrt.InvalidArgumentError(f"param '{name}': role {kind!r}; use 'muon' or 'adamw'")
    if isinstance(reading, str):
        reading = {} if reading == "plain" else {"view": reading}
    if unknown := set(reading) - set(READING):
        raise muonrt.InvalidArgumentError(
            f"param '{name}': a role has no setting {sorted(unknown)}; there are {READING}")
    if kind == "adamw" and (matrices := set(reading) & {"view", *DIMS}):
        raise muonrt.InvalidArgumentError(
            f"param '{name}': role 'adamw' with {sorted(matrices)}, which are Muon's; leave them out")
    for key, value in (dims | reading).items():
        kinds = {"transposed": bool, "batch_dims": int, "row_dims": int}
        if key in DIMS and type(value) is not kinds[key]:
            raise muonrt.InvalidArgumentError(
                f"param '{name}': {key} is {value!r}; give {kinds[key].__name__}")
    if "layout" in reading and ranks.is_dtensor(p):
        raise muonrt.InvalidArgumentError(
            f"param '{name}': a layout is given, but the DTensor says {p.placements}; give a layout "
            "for plain tensors, each rank's shard")
    return kind, (dims if kind == "muon" else {}) | reading


def warn_of_conv1d(groups: list[dict], readings: list[dict], muon: dict) -> None:
    """Where GPT-2's names have the shape that only Conv1D gives, and a setting asks for rows."""
    if muon.get("scale_rule") not in ("original", "ratio") \
            and muon.get("normuon", "off") == "off" and not muon.get("block_period"):
        return
    named = [(group["role"], *pair) for group in groups for pair in group["params"]]
    for (kind, name, p), reading in zip(named, readings):
        if kind == "adamw" or p.ndim != 2 or "transposed" in reading:
            continue
        wide = p.shape[0] < p.shape[1] and ("c_attn" in name or "c_fc" in name)
        if wide or p.shape[0] > p.shape[1] and "c_proj" in name:
            warnings.warn(f"param '{name}': shape {tuple(p.shape)} is that of a weight stored "
                          "inputs x outputs (GPT-2's Conv1D); give the group or role of all of "
                          "these transposed=True, or False", stacklevel=4)
            return
