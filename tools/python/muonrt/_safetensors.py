"""Files of `muonrt step --state-out`: safetensors, from their bytes to torch's tensors and back."""

import json

import torch

DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16,
          "U16": torch.uint16, "I64": torch.int64}


def read(path) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Tensors and metadata; what is no such file raises ValueError."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > size - 8:
            raise ValueError(f"{path} is no safetensors file")
        table = json.loads(file.read(length))
        metadata = table.pop("__metadata__", {})
        tensors = {}
        for name, entry in table.items():
            if entry["dtype"] not in DTYPES:
                raise ValueError(f"{path}: tensor '{name}' is {entry['dtype']}")
            begin, end = entry["data_offsets"]
            file.seek(8 + length + begin)
            data = bytearray(file.read(end - begin))
            dtype = DTYPES[entry["dtype"]]
            flat = torch.frombuffer(data, dtype=dtype) if data else torch.empty(0, dtype=dtype)
            tensors[name] = flat.reshape(entry["shape"])
    return tensors, metadata


def write(path, tensors: dict[str, torch.Tensor], metadata: dict[str, str]) -> None:
    names = {dtype: name for name, dtype in DTYPES.items()}
    table, at = {"__metadata__": metadata}, 0
    for name, tensor in tensors.items():
        end = at + tensor.nbytes
        table[name] = {"dtype": names[tensor.dtype], "shape": list(tensor.shape),
                       "data_offsets": [at, end]}
        at = end
    header = json.dumps(table).encode()
    header += b" " * (-len(header) % 8)  # data begins at a multiple of eight bytes
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for tensor in tensors.values():
            file.write(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
