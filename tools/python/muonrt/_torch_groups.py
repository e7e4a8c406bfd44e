"""add_param_group of muonrt.torch.Muon: all is planned anew, and the state goes over."""

import torch

import muonrt
from muonrt import _torch_ranks as ranks
from muonrt._torch_state import State

# What a plan is, of an optimizer; a refused group leaves these as they were.
PLANNED = ("_core", "_params", "_sent", "_places", "_state_views")


def add(optimizer, param_group: dict, enter) -> None:
    """`enter(group)` is torch's own. Collective."""
    if optimizer._state_views is None:
        raise muonrt.InvalidStateError("the optimizer is closed; create another one")
    kept = {key: getattr(optimizer, key) for key in PLANNED}
    groups, names = len(optimizer.param_groups), len(optimizer._names)
    states = dict(optimizer.state)

    def join():
        if optimizer._saving:
            raise muonrt.InvalidStateError("a save is under way; call save_wait first")
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

    def go_on():
        optimizer._state_views.go_on(states, kept["_core"])
        if optimizer._reserved is not None:
            optimizer._core.save_reserve(with_params=optimizer._reserved)

    with torch.no_grad(), ranks.on_device(optimizer._device):
        try:
            ranks.together(optimizer._comm, join)
            kept["_state_views"].gather()
            optimizer._create()
            optimizer._state_views = State(optimizer)
            ranks.together(optimizer._comm, go_on)
        except BaseException as error:
            if not isinstance(error, Exception):  # Ctrl-C
                optimizer._comm.abort("interrupted by a signal")
            if optimizer._core is not kept["_core"]:
                optimizer._core.close()
            optimizer.__dict__.update(kept)
            optimizer.state.clear()
            optimizer.state.update(states)
            del optimizer.param_groups[groups:], optimizer._names[names:]
            del optimizer._readings[names:]
            optimizer._state_views.note_steps()
            raise
    kept["_core"].close()
