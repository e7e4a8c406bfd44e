"""Reads and writes files in the format of `muonrt state export --state`, with the safetensors
package."""

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file


def read(path) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Returns tensors and metadata. Raises ValueError if the file has a different format."""
    try:
        with safe_open(path, "pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}
    except SafetensorError as error:
        raise ValueError(f"{path} is not a safetensors file: {error}") from None


def write(path, tensors: dict[str, torch.Tensor], metadata: dict[str, str]) -> None:
    # The package rejects tensors that share memory, so each tensor is copied.
    save_file({name: t.contiguous().clone() for name, t in tensors.items()}, path, metadata)
