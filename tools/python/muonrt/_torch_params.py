"""Keeps the registered parameters of muonrt.torch.Muon up to date: before each step, finds
parameters that were replaced in param_groups or in the model, or that have moved in memory, and
registers them again."""

import torch

import muonrt
from muonrt import _torch_arguments, _torch_groups
from muonrt import _torch_ranks as ranks
from muonrt._torch_state import raw_of

FLAT = ("if DeepSpeed's ZeRO has replaced them by its flat partitions, use stage 0, or the ZeroClient of "
        "tools/examples/python/deepspeed_zero.py")


def memory_of(tensor: torch.Tensor) -> tuple:
    """Returns a value that identifies a tensor's memory, and how the tensor interprets it."""
    return tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride(), tensor.device


def same_layout(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Returns whether `a` and `b` are both plain tensors, or both DTensors with the same mesh and
    placements."""
    if not (ranks.is_dtensor(a) and ranks.is_dtensor(b)):
        return ranks.is_dtensor(a) == ranks.is_dtensor(b)
    return a.placements == b.placements and a.device_mesh == b.device_mesh


class Registered(torch.optim.Optimizer):
    """Implements the methods of muonrt.torch.Muon that register the memory of parameters."""

    def _follow(self) -> None:
        """Registers parameters that were replaced or have moved, and copies changes of `state`.
        Raises an error if the optimizer cannot use a parameter."""
        self._follow_state()
        self._follow_memory()

    def _follow_state(self) -> None:
        if self._core is None or self._state_tensors is None:
            raise muonrt.InvalidStateError("the optimizer is closed; create a new one")
        if self._alone:
            _torch_arguments.require_alone()
        self.wait()
        with torch.no_grad(), ranks.on_device(self._device):
            self._follow_module()
            self._follow_groups()
            self._state_tensors.absorb()

    def _find_places(self) -> None:
        """If the model is known, finds the module and the attribute of each parameter."""
        places = {}
        for m in self._module.modules() if self._module is not None else ():
            for key, p in m._parameters.items():
                places.setdefault(id(p), (m, key))
        self._places = [places.get(id(p)) for p in self._params]

    def _follow_module(self) -> None:
        """Updates param_groups if a module contains a new parameter instead of a registered one,
        for example after load_state_dict(assign=True)."""
        index = -1
        for group in self.param_groups:
            for j, p in enumerate(group["params"]):
                index += 1
                if index >= len(self._places) or p is not self._params[index]:
                    return  # the caller has replaced parameters of param_groups
                if self._places[index] is None:
                    continue
                module, key = self._places[index]
                now = module._parameters.get(key)
                if now is None or now is p:
                    continue
                # If only `p` has a gradient, FSDP2 has gathered the parameter: `now` is temporary.
                if same_layout(now, p) or p.grad is None and now.grad is not None:
                    if (now.shape, now.dtype) == (p.shape, p.dtype):
                        group["params"][j] = now
                    elif now.grad is not None:
                        self._refuse(index, p, now)

    def _refuse(self, index: int, old: torch.Tensor, new: torch.Tensor) -> None:
        def text(p):
            placed = f" and placements {p.placements}" if ranks.is_dtensor(p) else ""
            return f"shape {tuple(p.shape)}, dtype {p.dtype}{placed}"

        remedy = FLAT if new.ndim == 1 and old.ndim > 1 else "create a new optimizer"
        raise muonrt.InvalidArgumentError(
            f"param '{self._names[index]}' was replaced by a tensor of {text(new)}, but was registered "
            f"with {text(old)}; {remedy}")

    def _follow_groups(self) -> None:
        """Registers the current parameters of param_groups, because accelerate replaces them there."""
        held = [p for group in self.param_groups for p in group["params"]]
        if len(held) == len(self._params) and all(map(lambda p, q: p is q, held, self._params)):
            return
        sizes, registered = [len(g["params"]) for g in self.param_groups], self._sizes
        if sizes != registered:
            is_flat = set(sizes) == {1} and all(p.ndim == 1 for p in held)
            raise muonrt.InvalidStateError(
                f"param_groups have {sizes} parameters, but {registered} are registered; " + (
                    FLAT if is_flat else "use add_param_group(), or create a new optimizer"))
        moves = False
        for i, (p, old) in enumerate(zip(held, self._params)):
            if (p.shape, p.dtype) != (old.shape, old.dtype):
                self._refuse(i, old, p)
            moves = moves or not same_layout(p, old) or p.device.type != old.device.type
        if moves:
            _torch_groups.register_again(self, held)
            return
        places = {id(p): place for p, place in zip(self._params, self._places)}
        entries = {id(old): self.state.pop(old, {}) for old in self._params}
        for old, p in zip(self._params, held):
            self.state[p] = entries[id(old)]
        self._places = [places[id(old)] for old in self._params]
        self._params = held

    def _data(self, i: int) -> torch.Tensor:
        """Returns the local elements of a parameter in row-major order. If the parameter is
        row-major, the result shares its memory; otherwise it is a copy."""
        local = ranks.local_of(self._params[i])
        if local.is_contiguous():
            self._copies.pop(i, None)
            return local
        copy = self._copies.get(i)
        if copy is None or memory_of(copy)[1:3] != memory_of(local)[1:3] or copy.device != local.device:
            copy = self._copies[i] = torch.empty_like(local, memory_format=torch.contiguous_format)
        return copy.copy_(local)

    def _write_back(self) -> None:
        """Copies updated values from the row-major copies back to their parameters."""
        for i, copy in self._copies.items():
            ranks.local_of(self._params[i]).copy_(copy)

    def _follow_memory(self) -> None:
        """Registers the new memory of parameters that have moved (`p.data = ...`)."""
        # A parameter that is not row-major is copied in every step.
        moved = [(i, p) for i, (p, memory) in enumerate(zip(self._params, self._memory))
                 if memory_of(raw_of(p)) != memory]
        if any(p.device.type != self._device.type for _, p in moved):
            _torch_groups.register_again(self, self._params)
        rejected = []
        for i, p in moved:
            raw = raw_of(p)
            memory = raw if raw.is_contiguous() else self._data(i)
            if memory_of(memory) != self._memory[i]:
                try:
                    self._bind(i, self._data(i))
                except muonrt.InvalidArgumentError:  # the memory may still belong to another parameter
                    rejected.append((i, self._data(i)))
        for i, local in rejected[1:]:
            self._bind(i, torch.empty_like(local))
        for i, local in rejected:
            self._bind(i, local)

    def _bind(self, i: int, local: torch.Tensor) -> None:
        self._core.set_data(i, local)
        self._memory[i] = memory_of(local)
