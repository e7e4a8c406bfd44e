"""The `state` of muonrt.torch.Muon: tensors over muonrt's memory, with the keys of torch's optimizers."""

import math

import numpy as np
import torch

import muonrt
from muonrt import _torch_ranks as ranks

# Keys of torch.optim.Muon and AdamW, and muonrt's kinds of state. The momentum of torch is a running
# mean, too.
KINDS = {"muon": {"momentum_buffer": "momentum"},
         "adamw": {"exp_avg": "momentum", "exp_avg_sq": "variance"}}


def momentum_factor(of: str, to: str, momentum: float) -> float:
    """Returns the factor that converts a momentum: heavy ball = EMA / (1 - momentum)."""
    if not {of, to} <= {"ema", "ema_corrected", "heavy_ball"}:
        raise ValueError(f"momentum_kind is '{of}' and '{to}'; use 'ema', 'ema_corrected' or "
                         "'heavy_ball'")
    if (of == "heavy_ball") == (to == "heavy_ball"):
        return 1.0
    return 1 / (1 - momentum) if to == "heavy_ball" else 1 - momentum


def tensor_over(array) -> torch.Tensor:
    """Returns a tensor over an array of muonrt's memory."""
    return torch.from_numpy(array) if isinstance(array, np.ndarray) else torch.from_dlpack(array)


class NeuronMoments:
    """NorMuon's second moments, which the owners of matrices hold. `tensors` are whole tensors, by
    index of the parameter, which `gather` fills on every rank."""

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
            whole.fill_(torch.nan)  # marks elements of other owners
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
    """Fills `optimizer.state` with tensors over muonrt's memory, which are DTensors if the parameter is
    one."""

    def __init__(self, optimizer):
        self._optimizer = optimizer
        shards = optimizer._core.state_shards()
        self._local = {(s.param, s.kind): s.data for s in shards}
        # For AdamW the update count of each parameter, for Muon the number of all steps.
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
        self._local = {}
        self._moments = NeuronMoments(optimizer._core, optimizer._comm,
                                      [s for s in shards if s.kind == "normuon"])
        for i, whole in self._moments.tensors.items():
            optimizer.state[optimizer._params[i]]["normuon"] = whole

    def read_steps(self) -> None:
        """Copies the step number and the update counts to `state`."""
        core = self._optimizer._core
        for group in self._optimizer.param_groups:
            group["steps"] = core.steps
        counts = iter(core.update_counts)
        self._steps.copy_(torch.tensor([count if group["role"] == "adamw" else core.steps
                                        for group in self._optimizer.param_groups
                                        for _, count in zip(group["params"], counts)]))

    def gather(self) -> None:
        """Copies NorMuon's second moments of all owners to `state`. Collective."""
        self._moments.gather()

    def _view(self, index: int, kind: str, p: torch.Tensor) -> torch.Tensor:
        """Returns a tensor over one kind of state of a parameter."""
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
        if not ranks.is_dtensor(p):
            return local
        from torch.distributed.tensor import DTensor

        return DTensor.from_local(local, p.device_mesh, p.placements, run_check=False,
                                  shape=p.shape, stride=p.stride())

    def reset_masters(self) -> None:
        ranks.settle(self._optimizer._device)  # muonrt waits only for the default stream
        self._optimizer._core.reset_masters()

    def take_over(self, states: dict, core) -> None:
        """Copies the `state` and the counts of an optimizer of the first of these parameters."""
        for p, old in states.items():
            new = self._optimizer.state[p]
            for key, tensor in old.items():
                if key not in new:  # an entry of the caller
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
        groups, saved = self._optimizer.param_groups, state_dict["param_groups"]
        sizes, saved_sizes = ([len(g["params"]) for g in gs] for gs in (groups, saved))
        if sizes != saved_sizes:
            raise muonrt.InvalidArgumentError(
                f"the state has groups of {saved_sizes} parameters, but the optimizer has groups of "
                f"{sizes}; create the optimizer with the same groups")
        counts, steps = [], 0
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
                    counts.append(found.get("step"))
                kept = {"params", "role", "param_names", "momentum_kind", "steps"}
                group.update({k: v for k, v in other.items() if k in group and k not in kept})
        self._moments.scatter()
        ranks.settle(self._optimizer._device)  # the next step may run on another stream
        steps = max([steps, *(int(n) for n in counts if n is not None)])
        self._optimizer._core.steps = steps
        self._optimizer._core.update_counts = [steps if n is None else int(n) for n in counts]
        self.read_steps()

    @staticmethod
    def _keys(group: dict, other: dict) -> list:
        """Returns the keys of the saved state in the order of `group`. Keys that are numbers are
        matched by parameter name if the saved group has names."""
        keys, names = other["params"], other.get("param_names")
        if names is None or any(isinstance(key, str) for key in keys):
            return keys
        of = dict(zip(names, keys))
        if lost := [name for name in group["param_names"] if name not in of]:
            raise muonrt.InvalidArgumentError(
                f"the group in the state has no param '{lost[0]}', only {names}; load a state of the "
                "same parameters")
        return [of[name] for name in group["param_names"]]

    def _load_one(self, p: torch.Tensor, found: dict) -> None:
        optimizer = self._optimizer
        name = optimizer._names[next(i for i, q in enumerate(optimizer._params) if q is p)]
        for key, ours in optimizer.state[p].items():
            if key == "step":
                continue
            if key in found:
                _copy(f"param '{name}': state '{key}'", ours, found[key])
            elif key == "master":  # torch has no master weights, so they are copied from the parameter
                ranks.local_of(ours).copy_(ranks.local_of(p))
            else:
                raise muonrt.InvalidArgumentError(
                    f"param '{name}': the state has no '{key}', only {sorted(found)}; load a state of "
                    "the same optimizer and settings")


def _copy(what: str, ours: torch.Tensor, theirs: torch.Tensor) -> None:
    """Copies `theirs` to `ours`, and converts the dtype."""
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
    ranks.local_of(ours).copy_(ranks.local_of(theirs))
