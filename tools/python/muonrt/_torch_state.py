"""What muonrt.torch.Muon keeps, as torch's optimizers name it, over muonrt's own memory."""

import math

import numpy as np
import torch

import muonrt
from muonrt import _torch_ranks as ranks

# Names of torch.optim.Muon and AdamW, and muonrt's kinds of state. All follow one convention
# (momentum is a running mean there, too).
KINDS = {"muon": {"momentum_buffer": "momentum"},
         "adamw": {"exp_avg": "momentum", "exp_avg_sq": "variance"}}


def momentum_factor(of: str, to: str, momentum: float) -> float:
    """What turns a momentum of one convention into another: a heavy ball is the sum of a mean."""
    if not {of, to} <= {"ema", "ema_corrected", "heavy_ball"}:
        raise ValueError(f"momentum_kind is '{of}' and '{to}'; there are 'ema', 'ema_corrected' and "
                         "'heavy_ball'")
    if (of == "heavy_ball") == (to == "heavy_ball"):
        return 1.0
    return 1 / (1 - momentum) if to == "heavy_ball" else 1 - momentum


def tensor_over(array) -> torch.Tensor:
    """A tensor over muonrt's own memory."""
    return torch.from_numpy(array) if isinstance(array, np.ndarray) else torch.from_dlpack(array)


class Moments:
    """NorMuon's, which lie with the owners of matrices: whole tensors that every rank has."""

    def __init__(self, core, comm, wanted: bool):
        self._comm = comm
        mine = [(core.find(e.param), e) for e in core.state_extents() if e.kind == "normuon"] \
            if wanted else []
        lines = {i: math.prod(e.shape) for i, e in mine}
        for of_rank in ranks.gather_objects(comm, list(lines.items())):
            lines |= dict(of_rank)
        self.tensors = {i: torch.zeros(lines[i], device="cpu") for i in sorted(lines)}
        self._pieces = [(tensor_over(e.data), self.tensors[i][e.begin:e.end]) for i, e in mine]

    def gather(self) -> None:
        if not self.tensors:
            return
        for whole in self.tensors.values():
            whole.fill_(torch.nan)  # not of this rank
        for memory, part in self._pieces:
            part.copy_(memory)
        joined = torch.cat(list(self.tensors.values()))
        for other in self._comm.allgather(joined.numpy().tobytes()):
            theirs = torch.frombuffer(bytearray(other), dtype=torch.float32)
            joined = torch.where(joined.isnan(), theirs, joined)
        for whole, part in zip(self.tensors.values(),
                               joined.split([w.numel() for w in self.tensors.values()])):
            whole.copy_(part)

    def scatter(self) -> None:
        for memory, part in self._pieces:
            memory.copy_(part)


class State:
    """Fills `optimizer.state`: DTensors where parameters are, each over muonrt's memory."""

    def __init__(self, optimizer):
        self._optimizer = optimizer
        # Of AdamW's parameters: the updates in which each took part; of Muon's: all steps.
        self._steps = torch.zeros(len(optimizer._params), dtype=torch.float32, device="cpu")
        index = 0
        for group in optimizer.param_groups:
            kinds = KINDS[group["role"]]
            for p in group["params"]:
                state = {"step": self._steps[index]}
                for key, kind in kinds.items():
                    state[key] = self._view(index, kind, p)
                if p.dtype == torch.bfloat16:
                    state["master"] = self._view(index, "master", p)
                optimizer.state[p] = state
                index += 1
            group["steps"] = 0  # of the optimizer
        wanted = optimizer._fixed["muon"].get("normuon", "off") != "off"
        self._moments = Moments(optimizer._core, optimizer._comm, wanted)
        for i, whole in self._moments.tensors.items():
            optimizer.state[optimizer._params[i]]["normuon"] = whole

    def note_steps(self) -> None:
        """Brings the counts of steps into `state`."""
        core = self._optimizer._core
        for group in self._optimizer.param_groups:
            group["steps"] = core.steps
        counts = iter(core.updates)
        self._steps.copy_(torch.tensor([updates if group["role"] == "adamw" else core.steps
                                        for group in self._optimizer.param_groups
                                        for _, updates in zip(group["params"], counts)]))

    def gather(self) -> None:
        """Brings NorMuon's moments of all owners into `state`. Collective."""
        self._moments.gather()

    def _view(self, index: int, kind: str, p: torch.Tensor) -> torch.Tensor:
        local = tensor_over(self._optimizer._core.state(index, kind))
        if local.dtype == torch.uint16:
            local = local.view(torch.bfloat16)
        if not ranks.is_dtensor(p):
            return local
        from torch.distributed.tensor import DTensor

        return DTensor.from_local(local, p.device_mesh, p.placements, run_check=False,
                                  shape=p.shape, stride=p.stride())

    def take_params(self) -> None:
        ranks.settle(self._optimizer._device)  # muonrt waits for the default stream alone
        self._optimizer._core.take_params()

    def go_on(self, states: dict, core) -> None:
        """Takes over the `state` and the counts of an optimizer of the first of these parameters."""
        for p, old in states.items():
            new = self._optimizer.state[p]
            for key, tensor in old.items():
                if key not in new:  # the caller's own
                    new[key] = tensor
                elif key != "step":
                    ranks.local_of(new[key]).copy_(ranks.local_of(tensor))
        self._moments.scatter()
        ranks.settle(self._optimizer._device)
        new = self._optimizer._core
        new.steps = core.steps
        new.updates = core.updates + [0] * (len(new.updates) - len(core.updates))
        self.note_steps()

    def load(self, state_dict: dict) -> None:
        groups, saved = self._optimizer.param_groups, state_dict["param_groups"]
        sizes, saved_sizes = ([len(g["params"]) for g in gs] for gs in (groups, saved))
        if sizes != saved_sizes:
            raise muonrt.InvalidArgumentError(
                f"the state has groups of {saved_sizes} parameters, the optimizer of {sizes}")
        updates, steps = [], 0
        with torch.no_grad():
            for group, other in zip(groups, saved):
                factor = 1.0
                steps = max(steps, other.get("steps", 0))
                if group["role"] == "muon":
                    ours = group["momentum_kind"]
                    theirs = other.get("momentum_kind", ours if "role" in other else "ema")
                    factor = momentum_factor(theirs, ours, other["momentum"])
                for p, key in zip(group["params"], self._keys(group, other)):
                    found = state_dict["state"].get(key, {})
                    self._load_one(p, found)
                    if factor != 1.0:
                        ranks.local_of(self._optimizer.state[p]["momentum_buffer"]).mul_(factor)
                    updates.append(found.get("step"))
                kept = {"params", "role", "param_names", "momentum_kind", "steps"}
                group.update({k: v for k, v in other.items() if k in group and k not in kept})
        self._moments.scatter()
        ranks.settle(self._optimizer._device)  # the next step may be given another stream
        steps = max([steps, *(int(n) for n in updates if n is not None)])
        self._optimizer._core.steps = steps
        self._optimizer._core.updates = [steps if n is None else int(n) for n in updates]
        self.note_steps()

    @staticmethod
    def _keys(group: dict, other: dict) -> list:
        """Keys of the saved state in the order of `group`: by name where numbers have names."""
        keys, names = other["params"], other.get("param_names")
        if names is None or any(isinstance(key, str) for key in keys):
            return keys
        of = dict(zip(names, keys))
        if lost := [name for name in group["param_names"] if name not in of]:
            raise muonrt.InvalidArgumentError(
                f"the state's group has no param '{lost[0]}'; it has {names}")
        return [of[name] for name in group["param_names"]]

    def _load_one(self, p: torch.Tensor, found: dict) -> None:
        optimizer = self._optimizer
        name = optimizer._names[next(i for i, q in enumerate(optimizer._params) if q is p)]
        for key, ours in optimizer.state[p].items():
            if key == "step":
                continue
            if key in found:
                _copy(f"param '{name}': state '{key}'", ours, found[key])
            elif key == "master":  # torch has none: the parameter is what there is
                ranks.local_of(ours).copy_(ranks.local_of(p))
            else:
                raise muonrt.InvalidArgumentError(
                    f"param '{name}': the state has no '{key}'; it has {sorted(found)}")


def _copy(what: str, ours: torch.Tensor, theirs: torch.Tensor) -> None:
    """ours <- theirs, in ours' dtype and place."""
    if ranks.is_dtensor(ours) != ranks.is_dtensor(theirs):
        raise muonrt.InvalidArgumentError(
            f"{what} is a DTensor on one side alone; use torch.distributed.checkpoint")
    if ranks.is_dtensor(ours) and (ours.placements != theirs.placements
                                   or ours.device_mesh != theirs.device_mesh):
        raise muonrt.InvalidArgumentError(
            f"{what} lies as {theirs.placements}, not as {ours.placements}; use "
            "torch.distributed.checkpoint, which reshards")
    if ours.shape != theirs.shape:
        raise muonrt.InvalidArgumentError(
            f"{what} has shape {tuple(theirs.shape)}, not {tuple(ours.shape)}")
    ranks.local_of(ours).copy_(ranks.local_of(theirs))
