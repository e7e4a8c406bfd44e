"""Creates a new core optimizer for muonrt.torch.Muon, for add_param_group and for parameters that were
sharded or moved to another device after the creation."""

import torch

import muonrt
from muonrt import _torch_ranks as ranks
from muonrt._torch_state import State

# The attributes that belong to the core optimizer. They are restored if a group is rejected.
OF_CORE = ("_core", "_params", "_sent", "_memory", "_state_tensors", "_places", "_copies", "_versions",
           "_sizes", "_samples", "_device", "_comm", "_made_with")


def add(optimizer, param_group: dict, enter) -> None:
    """Adds a group of parameters; `enter(group)` is the method of torch. Collective."""
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
            optimizer._core.save_reserve(with_params=optimizer._reserved)

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
    """Registers `params` in place of the parameters, which they equal except for placements or device.
    Possible before the first step, because it discards the state. Collective."""
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
