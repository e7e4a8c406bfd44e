"""Reads and writes safetensors files in Python: {name: (dtype, shape, values)}, where values is a flat list."""
import json
import math
import struct
from pathlib import Path

from state_files import Tensors, write_tensors

CODES = {"F32": "f", "F16": "e", "F64": "d", "I64": "q"}


def f32_bits(value):
    return struct.unpack("<I", struct.pack("<f", value))[0]


def f32_of(bits):
    return struct.unpack("<f", struct.pack("<I", bits))[0]


def bf16_bits(value):
    """Rounds to nearest, ties to even."""
    bits = f32_bits(value)
    return (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16


def bf16(value):
    return f32_of(bf16_bits(value) << 16)


def f32(value):
    return f32_of(f32_bits(value))


def encode(dtype, values):
    if dtype == "BF16":
        return struct.pack(f"<{len(values)}H", *(bf16_bits(v) for v in values))
    return struct.pack(f"<{len(values)}{CODES[dtype]}", *values)


def decode(dtype, data):
    if dtype == "BF16":
        return [f32_of(h << 16) for h, in struct.iter_unpack("<H", data)]
    return [value for value, in struct.iter_unpack("<" + CODES[dtype], data)]


def write(path, tensors, metadata=None):
    assert all(len(values) == math.prod(shape) for _, shape, values in tensors.values()), tensors.keys()
    write_tensors(path, {name: (dtype, shape, encode(dtype, values)) for name, (dtype, shape, values) in tensors.items()},
                  metadata)


def write_raw(path, header, data, length=None):
    Path(path).write_bytes(struct.pack("<Q", len(header) if length is None else length) + header + data)


def read(path):
    """Returns the tensors in the order of their data, and the metadata."""
    file = Tensors(path)
    entries = sorted(file.entries.items(), key=lambda item: item[1][2])
    return {name: (dtype, shape, decode(dtype, file.bytes(name))) for name, (dtype, shape, *_) in entries}, file.metadata


def read_model(folder):
    """Returns the tensors in a folder. The folder's index must name every file and tensor."""
    index = json.loads((Path(folder) / "model.safetensors.index.json").read_text())
    out, placed = {}, {}
    for file in sorted(set(index["weight_map"].values())):
        tensors = read(Path(folder) / file)[0]
        out |= tensors
        placed |= dict.fromkeys(tensors, file)
    assert placed == index["weight_map"], folder
    return out
