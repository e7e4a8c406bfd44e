"""Handles the groups of muonrt.torch.Muon. Sets their learning rates, and replaces the core optimizer
when add_param_group adds parameters, or when parameters were sharded or moved to another device after
the optimizer was created."""

from collections.abc import Iterable

import torch

import muonrt
from muonrt import _torch_ranks as ranks
from muonrt import _torch_roles as roles
from muonrt._torch_arguments import check_numbers
from muonrt._torch_state import State

# Muon's learning rate if neither the caller nor the preset sets one: with the scale rule match_rms,
# and with other scale rules.
MATCH_RMS_LR, OTHER_LR = 3e-4, 0.02

# The attributes that belong to the core optimizer. If a group is rejected, add() restores them.
OF_CORE = ("_core", "_params", "_sent", "_memory", "_state_tensors", "_places", "_copies", "_sizes",
           "_device", "_comm", "_made_with")


def _matches_adamw(muon: dict) -> bool:
    """Returns whether Muon's updates have the same scale as AdamW's, so that both can use the same
    learning rate."""
    return muon.get("scale_rule", "match_rms") == "match_rms"


def set_rates(given: dict, preset: dict, lr, adamw_lr, muon: dict) -> None:
    """Sets the learning rates of groups that do not set one. AdamW's learning rate stays None if it
    is unknown.

    :param lr, adamw_lr: arguments of the call, or None.
    :param muon: settings of muonrt.Group for Muon.
    """
    matches = _matches_adamw(muon)
    default = preset["muon"].get("lr", MATCH_RMS_LR if matches else OTHER_LR)
    given["muon"]["lr"] = default if lr is None else lr
    of_preset = preset["adamw"].get("lr")
    if adamw_lr is None:
        known = of_preset is not None and (lr is None or not matches)
        adamw_lr = of_preset if known else given["muon"]["lr"] if matches else None
    given["adamw"]["lr"] = adamw_lr


def split(params: Iterable, role, given: dict, muon: dict) -> list[tuple]:
    """Splits groups with _torch_roles.split, and adds a learning rate to the settings of each new
    group."""
    entries = list(params)
    if not entries or not isinstance(entries[0], dict):
        entries = [{"params": entries}]
    out = []
    for number, entry in enumerate(entries):
        others = {k: v for k, v in entry.items() if k != "adamw_lr"}
        check_numbers({k: v for k, v in entry.items() if v is not None}, f"group {number}: {{}}")
        for kind, named, settings in roles.split([others], role):
            rate = settings.get("lr", given[kind]["lr"])
            if kind == "adamw":
                rate = _adamw_rate(number, entry, named[0][0], given, muon)
            out.append((kind, named, settings | {"lr": rate}))
    return out


def _adamw_rate(number: int, entry: dict, name: str, given: dict, muon: dict):
    """Returns the learning rate for a group's AdamW parameters. `name`: the first of these
    parameters, for error messages."""
    if entry.get("adamw_lr") is not None:
        return entry["adamw_lr"]
    if "lr" in entry and (_matches_adamw(muon) or entry.get("role") == "adamw"):
        return entry["lr"]
    if given["adamw"]["lr"] is None:
        raise muonrt.InvalidArgumentError(
            f"group {number}: param '{name}' is updated with AdamW, but adamw_lr is missing, and lr = "
            f"{entry.get('lr', given['muon']['lr'])} is a rate for scale_rule '{muon['scale_rule']}'; pass "
            "adamw_lr, such as 3e-4, or use scale_rule 'match_rms', which takes one rate for both")
    return given["adamw"]["lr"]


def add(optimizer, param_group: dict, enter) -> None:
    """Adds a group of parameters. `enter(group)` adds it to the param_groups of
    torch.optim.Optimizer. Collective."""
    if optimizer._state_tensors is None:
        raise muonrt.InvalidStateError("the optimizer is closed; create a new one")
    kept = {key: getattr(optimizer, key) for key in OF_CORE}
    groups, names = len(optimizer.param_groups), len(optimizer._names)
    states = dict(optimizer.state)

    def join():
        if optimizer._saving:
            raise muonrt.InvalidStateError("a save is in progress; call save_wait() first")
        if not isinstance(param_group, dict):
            raise muonrt.InvalidArgumentError(
                f"param_group is {type(param_group).__name__}; pass a dict with 'params'")
        given, role, *_ = optimizer._made_with
        split = optimizer._split([param_group], role, given)
        if not split:
            raise muonrt.InvalidArgumentError("the group has no parameter that needs a gradient")
        for group in split:
            enter(group)
        optimizer._params = [p for group in optimizer.param_groups for p in group["params"]]

    def move_state():
        optimizer._state_tensors.take_over(states, kept["_core"])
        if optimizer._reserved is not None:
            optimizer._core.save_reserve(without_params=optimizer._reserved)

    with torch.no_grad(), ranks.on_device(optimizer._device):
        try:
            ranks.run_collectively(optimizer._comm, join)
            kept["_state_tensors"].gather()
            optimizer._create()
            optimizer._state_tensors = State(optimizer)
            ranks.run_collectively(optimizer._comm, move_state)
        except BaseException as error:
            if not isinstance(error, Exception):  # Ctrl-C
                optimizer._comm.abort("interrupted by a signal")
            if optimizer._core is not kept["_core"]:
                optimizer._core.close()
            optimizer.__dict__.update(kept)
            optimizer.state.clear()
            optimizer.state.update(states)
            del optimizer.param_groups[groups:], optimizer._names[names:]
            del optimizer._param_settings[names:]
            optimizer._state_tensors.read_steps()
            raise
    kept["_core"].close()


def register_again(optimizer, params: list) -> None:
    """Replaces the core optimizer with one for `params`, whose placements or device differ from
    those of the registered parameters. Raises an error after the first step, because the state
    would be lost. Collective."""
    first = next(i for i, (p, old) in enumerate(zip(params, optimizer._params))
                 if p is not old or ranks.local_of(p).device.type != optimizer._device.type)
    if optimizer._core.steps > 0:
        raise muonrt.InvalidStateError(
            f"param '{optimizer._names[first]}' was sharded again or moved to another device after step "
            f"{optimizer._core.steps}; create a new optimizer, and load a checkpoint into it")
    kept = {key: getattr(optimizer, key) for key in OF_CORE}
    states = dict(optimizer.state)
    device = ranks.local_of(params[0]).device
    with torch.no_grad(), ranks.on_device(device):
        try:
            optimizer._params = list(params)
            if device.type != optimizer._device.type:
                optimizer._connect(device)
            optimizer._create()
            optimizer.state.clear()
            optimizer._state_tensors = State(optimizer)
        except BaseException:
            if optimizer._core is not kept["_core"]:
                optimizer._core.close()
            optimizer.__dict__.update(kept)
            optimizer.state.clear()
            optimizer.state.update(states)
            raise
    kept["_core"].close()
    if optimizer._comm is not kept["_comm"]:
        kept["_comm"].close()
