"""Determines the roles of a model's parameters from its modules, for muonrt.torch.Muon."""

import re
from typing import Any

import torch
from torch import nn
from torch.utils.weak import WeakTensorKeyDictionary

import muonrt

CONVOLUTIONS = (nn.modules.conv._ConvNd,)
# Matches the path of a module inside a numbered module, such as a layer: "layers.0.mlp", but not
# "head.0".
IN_LAYER = re.compile(r"(^|\.)\d+\.(.*\.)?[^.\d][^.]*$")


def class_of(module: nn.Module) -> type:
    """Returns the class of the module. If fully_shard or replicate has replaced this class with a
    derived class, returns the original class."""
    cls = type(module)
    while len(cls.__bases__) == 2 and cls.__bases__[0].__module__.startswith("torch.distributed."):
        cls = cls.__bases__[1]
    return cls


def class_has(module: nn.Module, *parts: str) -> bool:
    """Returns whether the name of the module's class, or of a base class, contains one of
    `parts`."""
    return any(part in c.__name__ for c in type(module).__mro__ for part in parts)


def is_embedding(module: nn.Module) -> bool:
    weight = module._parameters.get("weight")
    return isinstance(module, (nn.Embedding, nn.EmbeddingBag)) or \
        (weight is not None and weight.ndim == 2 and class_has(module, "Embedding")
         and not is_linear(module))


def is_linear(module: nn.Module) -> bool:
    weight = module._parameters.get("weight")
    return weight is not None and weight.ndim == 2 and class_has(module, "Linear")


def is_norm(module: nn.Module) -> bool:
    return class_has(module, "Norm")


def is_vector(p: torch.Tensor) -> bool:
    """Returns whether at most one dimension is greater than 1."""
    return sum(n > 1 for n in p.shape) <= 1


def of_name(name: str, p: torch.Tensor) -> tuple[str, dict, str]:
    """Returns three values: the role that follows from name and shape, settings of muonrt.Param,
    and the reason for the role."""
    if p.ndim > 1 and is_vector(p):
        return "adamw", {}, f"at most one dimension of {tuple(p.shape)} is greater than 1"
    kind, view, reason = muonrt._core._route_and_reason(name, p.ndim)
    if view == "flatten" and p.shape[1] == 1:
        return "adamw", {}, "depthwise convolution"
    return kind, {} if view == "none" else {"view": view}, reason


class ModelRoles:
    """Determines the roles of a model's parameters from the modules that contain these
    parameters."""

    def __init__(self, model: nn.Module):
        self.modules = dict(model.named_modules())
        # For each parameter: the paths and the modules that contain it.
        self.owners = WeakTensorKeyDictionary()
        for path, module in self.modules.items():
            for p in module._parameters.values():
                if p is not None:
                    self.owners.setdefault(p, []).append((path, module))
        self.is_sequential = class_of(model) is nn.Sequential
        self._find_outputs(model)

    def _find_outputs(self, model: nn.Module) -> None:
        """Finds the number of tokens, the number of labels, and the modules that are output heads."""
        config = getattr(model, "config", None)
        text = getattr(config, "text_config", None)
        values = [getattr(c, key, None) for c in (config, text, model)
                  for key in ("vocab_size", "num_labels", "num_classes")]
        rows = [m.weight.shape[0] for m in self.modules.values() if is_embedding(m)]
        self.outputs = {n for n in values if isinstance(n, int) and n > 0} | set(sorted(rows)[-1:])
        self.hidden = {n for m in self.modules.values() if is_norm(m)
                       for p in m._parameters.values() if p is not None for n in p.shape[-1:]}
        linear = [(path, m) for path, m in self.modules.items() if is_linear(m)]
        used = {m.weight.shape[1] for _, m in linear} | self.hidden
        self.last = None
        if linear and not self.is_sequential and not IN_LAYER.search(linear[-1][0]) \
                and linear[-1][1].weight.shape[0] not in used:
            self.last = linear[-1][1]
        try:
            self.head = model.get_output_embeddings()
        except Exception:  # not every model has this method
            self.head = None

    def of(self, name: str, p: torch.Tensor) -> tuple[str, dict, str]:
        """Returns the same values as of_name(), but also considers the modules that contain the
        parameter."""
        owners = self.owners.get(p)
        if owners is None or p.ndim < 2 or is_vector(p):
            return of_name(name, p)
        for path, module in owners:
            if is_embedding(module):
                tied = len(owners) > 1
                return "adamw", {}, f"tied to the embedding '{path}'" if tied else \
                    f"embedding ({class_of(module).__name__})"
        path, module = owners[0]
        if is_norm(module):
            return "adamw", {}, f"norm ({class_of(module).__name__})"
        adapted = self._adapted(path)
        if adapted is not None:
            kind, _, reason = self.of(*adapted)
            if kind == "adamw":
                return kind, {}, f"adapter: {reason}"
        if isinstance(module, CONVOLUTIONS):
            return self._of_convolution(name, p, module)
        if is_linear(module):
            return self._of_linear(name, p, path, module)
        if p.ndim == 3 and class_has(module, "Expert", "MoE", "Moe"):
            # The transformers package sets this attribute if the matrices are stored as inputs x
            # outputs.
            dims = {"transposed": True} if getattr(module, "is_transposed", False) else {}
            return "muon", {"view": "stack", **dims}, f"stack of experts ({class_of(module).__name__})"
        kind, settings, reason = of_name(name, p)
        if kind == "muon" and class_of(module).__name__ == "Conv1D" and p.ndim == 2:
            settings, reason = {"transposed": True}, "matrix stored as inputs x outputs (Conv1D)"
        return kind, settings, reason

    def _adapted(self, path: str) -> tuple[str, torch.Tensor] | None:
        """If the path belongs to an adapter from the package peft, returns the name and the weight
        of the module that it adapts."""
        parts = path.split(".")
        for n in range(len(parts) - 1, 0, -1):
            outer = ".".join(parts[:n])
            base = getattr(self.modules[outer], "base_layer", None) if outer in self.modules else None
            if isinstance(base, nn.Module):
                weight = base._parameters.get("weight")
                inside = parts[n] == "base_layer"
                return None if inside or weight is None else (f"{outer}.base_layer.weight", weight)
        return None

    def _of_convolution(self, name: str, p: torch.Tensor, module: Any) -> tuple[str, dict, str]:
        try:
            kind, _, reason = of_name(name, p)
        except muonrt.InvalidArgumentError:  # the name does not show the meaning of the dimensions
            kind, reason = "muon", ""
        if kind == "adamw" and not reason.startswith("depthwise"):
            return kind, {}, reason
        groups = module.groups
        if groups > 1 and (p.shape[1] == 1 or p.shape[0] == groups):
            return "adamw", {}, f"depthwise convolution ({class_of(module).__name__})"
        if module.kernel_size == module.stride and max(module.stride) > 1 and module.in_channels <= 4:
            return "adamw", {}, f"patch embedding ({class_of(module).__name__})"
        if groups == 1:
            return "muon", {"view": "flatten"}, f"kernel ({class_of(module).__name__})"
        rows = p.shape[0] // groups
        parts = [muonrt.Part(f"group{i}", rows=(i * rows, (i + 1) * rows)) for i in range(groups)]
        return "muon", {"view": "flatten", "parts": parts}, f"kernel of {groups} groups"

    def _of_linear(self, name: str, p: torch.Tensor, path: str, module: Any) -> tuple[str, dict, str]:
        rows, columns = p.shape
        if module is self.head:
            return "adamw", {}, "output embedding of the model"
        if rows in self.outputs and rows != columns and not IN_LAYER.search(path):
            return "adamw", {}, f"output head of {rows} classes or tokens"
        if module is self.last:
            return "adamw", {}, f"output of the model, {rows} values"
        kind, settings, reason = of_name(name, p)
        if kind == "adamw" and reason.startswith("embedding") and columns in self.hidden:
            return "muon", {}, f"matrix ({class_of(module).__name__} of a hidden size)"
        return kind, settings, reason if kind == "adamw" else f"matrix ({class_of(module).__name__})"


def unwrapped(model: nn.Module) -> nn.Module:
    """Returns the model without the wrappers of DistributedDataParallel and torch.compile."""
    while True:
        if isinstance(model, nn.parallel.DistributedDataParallel):
            model = model.module
        elif type(model).__name__ == "OptimizedModule":
            model = model._orig_mod
        else:
            return model
