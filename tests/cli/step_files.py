"""Safetensors files in plain Python: {name: (dtype, shape, values)}, values a flat list."""
import json
import math
import struct
from pathlib import Path

SIZES = {"F32": 4, "BF16": 2, "F16": 2, "F64": 8, "I64": 8, "U8": 1}
CODES = {"F32": "f", "F16": "e", "F64": "d", "I64": "q", "U8": "B"}


def f32_bits(value):
    return struct.unpack("<I", struct.pack("<f", value))[0]


def f32_of(bits):
    return struct.unpack("<f", struct.pack("<I", bits))[0]


def bf16_bits(value):
    """To nearest, ties to even."""
    bits = f32_bits(value)
    return (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16


def bf16(value):
    return f32_of(bf16_bits(value) << 16)


def f32(value):
    return struct.unpack("<f", struct.pack("<f", value))[0]


def encode(dtype, values):
    if dtype == "BF16":
        return struct.pack(f"<{len(values)}H", *(bf16_bits(v) for v in values))
    return struct.pack(f"<{len(values)}{CODES[dtype]}", *values)


def decode(dtype, data):
    count = len(data) // SIZES[dtype]
    if dtype == "BF16":
        halves = struct.unpack(f"<{count}H", data)
        return [f32_of(h << 16) for h in halves]
    return list(struct.unpack(f"<{count}{CODES[dtype]}", data))


def write(path, tensors, metadata=None):
    header, blobs, at = {}, [], 0
    if metadata:
        header["__metadata__"] = metadata
    for name, (dtype, shape, values) in tensors.items():
        blob = encode(dtype, values)
        assert len(blob) == SIZES[dtype] * math.prod(shape), name
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(blob)]}
        at += len(blob)
        blobs.append(blob)
    write_raw(path, json.dumps(header).encode(), b"".join(blobs))


def write_raw(path, header, data, length=None):
    with open(path, "wb") as out:
        out.write(struct.pack("<Q", len(header) if length is None else length) + header + data)


def read(path):
    with open(path, "rb") as file:
        content = file.read()
    length = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8:8 + length])
    metadata = header.pop("__metadata__", {})
    out = {}
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, end = entry["data_offsets"]
        data = content[8 + length + begin:8 + length + end]
        out[name] = (entry["dtype"], entry["shape"], decode(entry["dtype"], data))
    return out, metadata


def read_model(folder):
    """The tensors of a folder with an index, which is to name every file and tensor."""
    index = json.loads((Path(folder) / "model.safetensors.index.json").read_text())
    out, placed = {}, {}
    for file in sorted(set(index["weight_map"].values())):
        tensors = read(Path(folder) / file)[0]
        out |= tensors
        placed |= dict.fromkeys(tensors, file)
    assert placed == index["weight_map"], folder
    return out
