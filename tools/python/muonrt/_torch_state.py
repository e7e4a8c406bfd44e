"""Implements the `state` of muonrt.torch.Muon. Its entries are views of muonrt's memory, and have
the keys that torch's optimizers use."""

import math

import numpy as np
import torch

import muonrt
from muonrt import _torch_ranks as ranks

# Maps the keys of torch.optim.Muon and AdamW to muonrt's kinds of state. In both, the momentum is an
# exponential moving average.
KINDS = {"muon": {"momentum_buffer": "momentum"},
         "adamw": {"exp_avg": "momentum", "exp_avg_sq": "variance"}}

# Settings of torch's optimizers. load() ignores settings that the group does not have.
SETTINGS_OF_TORCH = ("amsgrad", "maximize", "foreach", "capturable", "differentiable", "fused",
                     "decoupled_weight_decay", "ns_coefficients", "ns_steps", "adjust_lr_fn",
                     "lr", "weight_decay", "momentum", "nesterov", "betas", "eps")


def momentum_factor(of: str, to: str, momentum: float) -> float:
    """Returns the factor that converts a momentum between kinds: heavy ball = EMA / (1 -
    momentum)."""
    if not {of, to} <= {"ema", "ema_corrected", "heavy_ball"}:
        raise ValueError(f"momentum_kind is '{of}' and '{to}'; use 'ema', 'ema_corrected' or "
                         "'heavy_ball'")
    if (of == "heavy_ball") == (to == "heavy_ball"):
        return 1.0
    return 1 / (1 - momentum) if to == "heavy_ball" else 1 - momentum


def tensor_over(array) -> torch.Tensor:
    """Returns a tensor that shares the memory of an array of muonrt."""
    return torch.from_numpy(array) if isinstance(array, np.ndarray) else torch.from_dlpack(array)


class NeuronMoments:
    """NorMuon's second moments, which only the owners of the matrices hold. `tensors` maps the
    index of each parameter to a tensor with all of its moments. `gather` fills these tensors on
    every rank."""

    def __init__(self, core, comm, shards: list):
        self._comm = comm
        own = [(core.find_param(s.param), s) for s in shards]
        neurons = {i: math.prod(s.shape) for i, s in own}
        for of_rank in ranks.gather_objects(comm, list(neurons.items())):
            neurons |= dict(of_rank)
        self.tensors = {i: torch.zeros(neurons[i], device="cpu") for i in sorted(neurons)}
        self._shards = [(tensor_over(s.data), self.tensors[i][s.begin:s.end]) for i, s in own]

    def gather(self) -> None:
        """Copies the moments of all owners to `tensors`. Collective."""
        if not self.tensors:
            return
        for whole in self.tensors.values():
            whole.fill_(torch.nan)  # marks elements that this rank does not own
        for memory, part in self._shards:
            part.copy_(memory)
        joined = torch.cat(list(self.tensors.values()))
        for other in self._comm.allgather(joined.numpy().tobytes()):
            of_peer = torch.frombuffer(bytearray(other), dtype=torch.float32)
            joined = torch.where(joined.isnan(), of_peer, joined)
        for whole, part in zip(self.tensors.values(),
                               joined.split([w.numel() for w in self.tensors.values()])):
            whole.copy_(part)

    def scatter(self) -> None:
        """Copies `tensors` to the moments of the matrices that this rank owns."""
        for memory, part in self._shards:
            memory.copy_(part)


class State:
    """Fills `optimizer.state` with views of muonrt's memory. If a parameter is a DTensor, its state
    consists of DTensors."""

    def __init__(self, optimizer):
        self._optimizer = optimizer
        shards = optimizer._core.state_shards()
        self._local = {(s.param, s.kind): s.data for s in shards}
        # The entries "step": for AdamW the update count of the parameter, for Muon the optimizer's
        # number of steps.
        self._steps = torch.zeros(len(optimizer._params), dtype=torch.float32, device="cpu")
        # _views: for each parameter, the tensors that muonrt has put into `state`. _memory: local
        # tensors that share this memory.
        self._views: list[dict[str, torch.Tensor]] = []
        index = 0
        for group in optimizer.param_groups:
            kinds = KINDS[group["role"]]
            for p in group["params"]:
                state = {"step": self._steps[index]}
                for key, kind in kinds.items():
                    state[key] = self._view(index, kind, p)
                if p.dtype == torch.bfloat16:
                    state["master"] = self._view(index, "master", p)
                self._views.append(state)
                index += 1
            group["steps"] = 0  # number of steps of the optimizer
        self._local = {}
        self._moments = NeuronMoments(optimizer._core, optimizer._comm,
                                      [s for s in shards if s.kind == "normuon"])
        for i, whole in self._moments.tensors.items():
            self._views[i]["normuon"] = whole
        self._memory = [{key: ranks.local_of(view) for key, view in views.items()}
                        for views in self._views]
        # What absorb() compares: for each entry of `state`, its key, tensor, local tensor and
        # address.
        self._watched = [self._watch(i) for i in range(len(self._views))]
        for p, views in zip(optimizer._params, self._views):
            optimizer.state[p] = dict(views)
        self.read_steps()

    def _watch(self, i: int) -> list[tuple]:
        return [(key, view, raw_of(view), self._memory[i][key].data_ptr())
                for key, view in self._views[i].items()]

    def absorb(self) -> None:
        """Copies the trainer's changes to `state` to muonrt's memory: changed step numbers, and
        entries that the trainer has replaced, for example to offload them. If the trainer has
        removed an entry, resets that state."""
        optimizer, state = self._optimizer, self._optimizer.state
        copies, resets, steps = [], [], self._steps.clone()
        for i, (p, watched) in enumerate(zip(optimizer._params, self._watched)):
            found = state.get(p, {})
            for key, view, raw, address in watched:
                entry = found.get(key)
                if entry is view and raw.data_ptr() == address:
                    continue
                what = f"param '{optimizer._names[i]}': state '{key}'"
                if entry is None:
                    resets.append((i, key))
                    if key == "step":
                        steps[i] = 0
                elif key == "step":
                    copies.append((i, key, None))
                    steps[i] = _number(what, entry)
                else:
                    copies.append((i, key, _checked(what, view, entry)))
        if not copies and not resets and torch.equal(steps, self._known_steps):
            return
        for i, key, entry in copies:
            if entry is not None:
                self._memory[i][key].copy_(entry)
        for i, key in resets:
            if key == "master":
                self._memory[i][key].copy_(ranks.local_of(optimizer._params[i]))
            elif key != "step":
                self._memory[i][key].zero_()
        for i in {i for i, *_ in copies + resets}:
            p = optimizer._params[i]
            self._views[i] = {key: view if raw_of(view).data_ptr() == self._memory[i][key].data_ptr()
                              else self._as_param(self._memory[i][key], p)
                              for key, view in self._views[i].items()}
            self._watched[i] = self._watch(i)
            state[p] = {**state.get(p, {}), **self._views[i]}
        if any(key == "normuon" for _, key, *_ in copies + resets):
            self._moments.scatter()
        ranks.settle(optimizer._device)
        self._set_steps(steps)

    def _set_steps(self, steps: torch.Tensor) -> None:
        """Sets the core's update counts and its number of steps to the numbers in `state`."""
        core = self._optimizer._core
        is_muon = [g["role"] == "muon" for g in self._optimizer.param_groups for _ in g["params"]]
        changed = (steps != self._known_steps).tolist()
        counts = [int(n) if c else count
                  for n, c, count in zip(steps.tolist(), changed, core.update_counts)]
        all_muon = all(c for c, muon in zip(changed, is_muon) if muon)
        # Each of Muon's "step" entries holds the optimizer's number of steps. This number therefore
        # changes only if the trainer has changed all of these entries.
        number = max(counts) if any(changed) and all_muon else max(core.steps, *counts)
        core.steps = number
        core.update_counts = counts
        self.read_steps()

    def read_steps(self) -> None:
        """Copies the step number and the update counts to `state`."""
        core = self._optimizer._core
        for group in self._optimizer.param_groups:
            group["steps"] = core.steps
        counts = iter(core.update_counts)
        self._steps.copy_(torch.tensor([count if group["role"] == "adamw" else core.steps
                                        for group in self._optimizer.param_groups
                                        for _, count in zip(group["params"], counts)]))
        self._known_steps = self._steps.clone()

    def gather(self) -> None:
        """Copies NorMuon's second moments of all owners to `state`. Collective."""
        self._moments.gather()

    def _view(self, index: int, kind: str, p: torch.Tensor) -> torch.Tensor:
        """Returns a tensor that shares the memory of one kind of state of a parameter."""
        name, shape = self._optimizer._names[index], ranks.local_of(p).shape
        array = self._local.get((name, kind))
        if array is None:  # this rank's shard is empty
            array = self._optimizer._core.state(index, kind)
        local = tensor_over(array)
        if local.numel() != shape.numel():
            raise muonrt.NotSupportedError(
                f"param '{name}': owners hold its {kind}; use a layout without partial dimensions")
        local = local.view(shape)
        if local.dtype == torch.uint16:
            local = local.view(torch.bfloat16)
        return self._as_param(local, p)

    @staticmethod
    def _as_param(local: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
        """Returns a tensor that shares the memory of `local`. If the parameter is a DTensor, so is
        the result."""
        if not ranks.is_dtensor(p):
            return local.view_as(local)
        from torch.distributed.tensor import DTensor

        return DTensor.from_local(local, p.device_mesh, p.placements, run_check=False,
                                  shape=p.shape, stride=p.stride())

    def reset_masters(self) -> None:
        ranks.settle(self._optimizer._device)  # muonrt waits only for the default stream
        self._optimizer._core.reset_masters()

    def take_over(self, states: dict, core) -> None:
        """Copies the state and the counts from the previous core, whose parameters are the first
        ones of this optimizer. `states`: the entries of the previous `optimizer.state`."""
        for p, old in states.items():
            new = self._optimizer.state[p]
            for key, tensor in old.items():
                if key not in new:  # an entry that the caller has added
                    new[key] = tensor
                elif key != "step":
                    ranks.local_of(new[key]).copy_(ranks.local_of(tensor))
        self._moments.scatter()
        ranks.settle(self._optimizer._device)
        new = self._optimizer._core
        new.steps = core.steps
        counts = core.update_counts
        new.update_counts = counts + [0] * (len(new.update_counts) - len(counts))
        self.read_steps()

    def load(self, state_dict: dict) -> None:
        """Checks all of a state dict before it copies anything. If the check fails, raises an
        error, and the optimizer does not change."""
        optimizer = self._optimizer
        groups, saved = optimizer.param_groups, state_dict["param_groups"]
        sizes, saved_sizes = ([len(g["params"]) for g in gs] for gs in (groups, saved))
        if sizes != saved_sizes:
            raise muonrt.InvalidArgumentError(
                f"the state has groups of {saved_sizes} parameters, but the optimizer has groups of "
                f"{sizes}; create the optimizer with the same groups, or join the states of "
                "torch.optim.Muon and AdamW with `python -m muonrt.convert`")
        counts, steps, copies, settings, others = [], 0, [], [], []
        for group, other in zip(groups, saved):
            factor = 1.0
            steps = max(steps, _number("'steps' of a group", other.get("steps", 0)))
            # Only Muon's momentum can be a heavy-ball sum or an EMA.
            if group["role"] == "muon" and "momentum" in other:
                ours = group["momentum_kind"]
                theirs = other.get("momentum_kind", ours if "role" in other else "ema")
                factor = momentum_factor(theirs, ours, other["momentum"])
            for p, key in zip(group["params"], self._keys(group, other)):
                found = state_dict["state"].get(key, {})
                i = len(counts)
                copies += self._checked_entries(i, p, found, factor)
                counts.append(found.get("step"))
                others.append({k: v for k, v in found.items() if k not in self._views[i]})
            kept = {"params", "role", "param_names", "momentum_kind", "steps"}
            settings.append({k: v for k, v in other.items() if k not in kept and _is_ours(group, k)})
        optimizer._check_settings([g | changes for g, changes in zip(groups, settings)])
        counts = [n if n is None else _number(f"param '{name}': state 'step'", n)
                  for name, n in zip(optimizer._names, counts)]
        with torch.no_grad():
            for memory, theirs, factor in copies:
                memory.copy_(theirs)
                if factor != 1.0:
                    memory.mul_(factor)
        for group, changes in zip(groups, settings):
            group.update(changes)
        for p, views, extra in zip(optimizer._params, self._views, others):
            optimizer.state[p] = {**extra, **views}
        self._moments.scatter()
        ranks.settle(optimizer._device)  # the next step may run on another stream
        steps = max([steps, *(n for n in counts if n is not None)])
        optimizer._core.steps = steps
        optimizer._core.update_counts = [steps if n is None else n for n in counts]
        self.read_steps()

    @staticmethod
    def _keys(group: dict, other: dict) -> list:
        """Returns the keys of the saved state in the order of `group`. If the keys are numbers and
        the saved group has names, finds the order by parameter name."""
        keys, names = other["params"], other.get("param_names")
        if names is None or any(isinstance(key, str) for key in keys):
            return keys
        of = dict(zip(names, keys))
        if lost := [name for name in group["param_names"] if name not in of]:
            raise muonrt.InvalidArgumentError(
                f"the group in the state has no param '{lost[0]}', only {names}; load a state of the "
                "same parameters")
        return [of[name] for name in group["param_names"]]

    def _checked_entries(self, i: int, p: torch.Tensor, found: dict, factor: float) -> list[tuple]:
        """Returns the copies that load() makes for a parameter, as tuples of destination, new values
        and the factor to apply."""
        out = []
        name = self._optimizer._names[i]
        for key, view in self._views[i].items():
            memory = self._memory[i][key]
            if key == "step":
                continue
            if key in found:
                theirs = _checked(f"param '{name}': state '{key}'", view, found[key])
                out.append((memory, theirs, factor if key == "momentum_buffer" else 1.0))
            # A state of torch's optimizers has no master weights, so load() uses the parameter.
            elif key == "master":
                out.append((memory, ranks.local_of(p), 1.0))
            else:
                raise muonrt.InvalidArgumentError(
                    f"param '{name}': the state has no '{key}', only {sorted(map(str, found))}; load a "
                    "state of the same optimizer and settings, or one that `python -m muonrt.convert` "
                    "has written" + (", or start matrices that AdamW has trained without a state"
                                     if key == "momentum_buffer" and "exp_avg" in found else ""))
        return out


def _is_ours(group: dict, key: str) -> bool:
    """Returns whether load() copies this setting of a saved group: either the role has this
    setting, or a trainer has added it."""
    return key in group or key not in SETTINGS_OF_TORCH


def raw_of(tensor: torch.Tensor) -> torch.Tensor:
    """Returns this rank's shard without detaching it, which is faster than local_of()."""
    return tensor._local_tensor if ranks.is_dtensor(tensor) else tensor


def _number(what: str, value) -> int:
    """Converts a step number, which may be a tensor, to an int."""
    try:
        number = int(value)
    except (TypeError, ValueError, RuntimeError):
        number = -1
    if number < 0:
        raise muonrt.InvalidArgumentError(f"{what} is {value!r}; pass a whole number from 0")
    return number


def _checked(what: str, ours: torch.Tensor, theirs) -> torch.Tensor:
    """Returns the local elements of `theirs`. Raises an error if its shape or placements differ
    from those of `ours`."""
    if not isinstance(theirs, torch.Tensor):
        raise muonrt.InvalidArgumentError(
            f"{what} is of type {type(theirs).__name__}; pass a tensor of shape {tuple(ours.shape)}")
    if ranks.is_dtensor(ours) != ranks.is_dtensor(theirs):
        raise muonrt.InvalidArgumentError(
            f"{what} is a DTensor in the state or in the optimizer, but not in both; use "
            "torch.distributed.checkpoint")
    if ranks.is_dtensor(ours) and (ours.placements != theirs.placements
                                   or ours.device_mesh != theirs.device_mesh):
        raise muonrt.InvalidArgumentError(
            f"{what} has placements {theirs.placements}, but the optimizer has {ours.placements}; use "
            "torch.distributed.checkpoint, which reshards")
    if ours.shape != theirs.shape:
        raise muonrt.InvalidArgumentError(
            f"{what} has shape {tuple(theirs.shape)}, not {tuple(ours.shape)}")
    return ranks.local_of(theirs)
