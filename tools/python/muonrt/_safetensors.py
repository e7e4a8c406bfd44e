"""Files of `muonrt state export --state`, by the package safetensors, as torch's tensors and back."""

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file


def read(path) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Tensors and metadata; what is no such file raises ValueError."""
    try:
        with safe_open(path, "pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}
    except SafetensorError as error:
        raise ValueError(f"{path} is no safetensors file: {error}") from None


def write(path, tensors: dict[str, torch.Tensor], metadata: dict[str, str]) -> None:
    # Each a copy: the package refuses tensors that share memory.
    save_file({name: t.contiguous().clone() for name, t in tensors.items()}, path, metadata)
