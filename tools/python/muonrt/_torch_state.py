"""What muonrt.torch.Muon keeps, as torch's optimizers name it, over muonrt's own memory."""

import torch

import muonrt
from muonrt import _torch_ranks as ranks

# Names of torch.optim.Muon and AdamW, and muonrt's kinds of state. All follow one convention
# (momentum is a running mean there, too).
KINDS = {"muon": {"momentum_buffer": "momentum"},
         "adamw": {"exp_avg": "momentum", "exp_avg_sq": "variance"}}


class State:
    """Fills `optimizer.state`: DTensors where parameters are, each over muonrt's memory."""

    def __init__(self, optimizer):
        self._optimizer = optimizer
        self.steps = torch.zeros((), dtype=torch.float32)  # one number, that of all parameters
        index = 0
        for group in optimizer.param_groups:
            kinds = KINDS[group["role"]]
            for p in group["params"]:
                state = {"step": self.steps}
                for key, kind in kinds.items():
                    state[key] = self._view(index, kind, p)
                if p.dtype == torch.bfloat16:
                    state["master"] = self._view(index, "master", p)
                optimizer.state[p] = state
                index += 1

    def _view(self, index: int, kind: str, p: torch.Tensor) -> torch.Tensor:
        array = self._optimizer._core.state(index, kind)
        local = torch.from_numpy(array)
        if local.dtype == torch.uint16:
            local = local.view(torch.bfloat16)
        if not ranks.is_dtensor(p):
            return local
        from torch.distributed.tensor import DTensor

        return DTensor.from_local(local, p.device_mesh, p.placements, run_check=False,
                                  shape=p.shape, stride=p.stride())

    def take_params(self) -> None:
        with torch.no_grad():
            for p, state in self._optimizer.state.items():
                if "master" in state:
                    ranks.local_of(state["master"]).copy_(ranks.local_of(p))

    def load(self, state_dict: dict) -> None:
        groups, saved = self._optimizer.param_groups, state_dict["param_groups"]
        sizes, saved_sizes = ([len(g["params"]) for g in gs] for gs in (groups, saved))
        if sizes != saved_sizes:
            raise muonrt.InvalidArgumentError(
                f"the state has groups of {saved_sizes} parameters, the optimizer of {sizes}")
        steps = 0
        with torch.no_grad():
            for group, other in zip(groups, saved):
                for p, key in zip(group["params"], other["params"]):
                    found = state_dict["state"].get(key, {})
                    self._load_one(p, found)
                    steps = max(steps, int(found.get("step", 0)))
                kept = {"params", "role", "param_names"}
                group.update({k: v for k, v in other.items() if k in group and k not in kept})
        self._optimizer._core.steps = steps
        self.steps.fill_(steps)

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
