"""Reads checkpoints of muonrt in Python, as src/state/README.md describes them, and writes them again with
correct checksums."""
import itertools
import json
import math
import struct
from pathlib import Path

SIZES = {"F32": 4, "BF16": 2, "U16": 2, "I64": 8}
BLOCK = 1 << 20


def _table():
    out = []
    for i in range(256):
        for _ in range(8):
            i = i >> 1 ^ (0x82F63B78 if i & 1 else 0)
        out.append(i)
    return out


TABLE = _table()


def crc32c(data):
    out = 0xFFFFFFFF
    for byte in data:
        out = out >> 8 ^ TABLE[(out ^ byte) & 0xFF]
    return out ^ 0xFFFFFFFF


def scrambled(x):
    """Returns SplitMix64 of the state x."""
    mask = (1 << 64) - 1
    x = (x + 0x9E3779B97F4A7C15) & mask
    x = ((x ^ x >> 30) * 0xBF58476D1CE4E5B9) & mask
    x = ((x ^ x >> 27) * 0x94D049BB133111EB) & mask
    return x ^ x >> 31


class Tensors:
    """A safetensors file: its entries {name: (dtype, shape, begin, end)}, its metadata and its data."""

    def __init__(self, path):
        content = Path(path).read_bytes()
        length = struct.unpack("<Q", content[:8])[0]
        header = json.loads(content[8:8 + length])
        self.metadata = header.pop("__metadata__", {})
        self.entries = {name: (e["dtype"], e["shape"], *e["data_offsets"])
                        for name, e in header.items()}
        self.front = 8 + length
        self.data = bytearray(content[self.front:])

    def bytes(self, name):
        _, _, begin, end = self.entries[name]
        return bytes(self.data[begin:end])

    def write(self, path):
        """Writes the file. Sizes must not have changed. The checksums of a checkpoint's file are computed
        again.
        @return (bytes, CRC-32C of the header)"""
        if "crc32c" in self.metadata:
            self.metadata["crc32c"] = "".join(f"{crc32c(self.data[at:at + BLOCK]):08x}"
                                              for at in range(0, len(self.data), BLOCK))
        header = {"__metadata__": self.metadata}
        for name, (dtype, shape, begin, end) in self.entries.items():
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        front = struct.pack("<Q", len(text)) + text
        Path(path).write_bytes(front + self.data)
        return len(front) + len(self.data), crc32c(front)


def write_tensors(path, tensors, metadata=None):
    """Writes {name: (dtype, shape, bytes)} as a safetensors file."""
    header, data = {"__metadata__": metadata} if metadata else {}, b""
    for name, (dtype, shape, values) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape,
                        "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    front = json.dumps(header).encode()
    Path(path).write_bytes(struct.pack("<Q", len(front)) + front + data)


class Checkpoint:
    def __init__(self, folder, manifest="manifest.json"):
        self.path = Path(folder) / manifest
        self.manifest = json.loads(self.path.read_text())
        assert self.manifest.pop("crc32c") == self.first_line()[12:20].decode()
        self.files = {f["name"]: Tensors(Path(folder) / f["name"]) for f in self.manifest["files"]}

    def first_line(self):
        rest = self.path.read_bytes().split(b"\n", 1)[1]
        return b'{"crc32c": "%08x",\n' % crc32c(rest)

    def places(self):
        """Yields (kind, param, element, file, byte of the file) for each element of each tensor."""
        for file, tensors in self.files.items():
            pieces = json.loads(tensors.metadata["pieces"])
            for name, (dtype, _, begin, _) in tensors.entries.items():
                kind, number, param = name.split("/", 2)
                piece = pieces[f"{kind}/{number}"]
                lists = [[i for b, e in zip(runs[::2], runs[1::2]) for i in range(b, e)]
                         for runs in piece["runs"]]
                strides = [math.prod(piece["shape"][d + 1:]) for d in range(len(lists))]
                steps = [[i * stride for i in list_] for list_, stride in zip(lists, strides)]
                at = tensors.front + begin
                for index in itertools.islice(itertools.product(*steps), *piece["range"]):
                    yield kind, param, sum(index), file, at
                    at += SIZES[dtype]

    def whole(self):
        """Returns {(param, kind): bytes of the whole tensor}. Each element must occur once."""
        out, seen = {}, set()
        dtypes = {(p["name"], kind): dtype for p in self.manifest["params"]
                  for kind, dtype in p["state"].items()}
        counts = {}
        for kind, param, element, file, at in self.places():
            assert (kind, param, element) not in seen
            seen.add((kind, param, element))
            size = SIZES[dtypes[param, kind]]
            data = self.files[file].data
            first = at - self.files[file].front
            counts.setdefault((param, kind), {})[element] = bytes(data[first:first + size])
        for key, elements in counts.items():
            assert sorted(elements) == list(range(len(elements)))
            out[key] = b"".join(elements[i] for i in range(len(elements)))
        return out

    def model(self):
        """Returns {param: (dtype, shape, bytes)}. If a bf16 parameter is saved only as master
        weights, they are rounded to even."""
        out, tensors = {}, self.whole()
        for p in self.manifest["params"]:
            data, dtype = tensors.get((p["name"], "param"), b""), {"f32": "F32", "bf16": "BF16"}[p["dtype"]]
            if "master" in p["state"] and "param" not in p["state"]:
                bits = [b for b, in struct.iter_unpack("<I", tensors[p["name"], "master"])]
                data = struct.pack(f"<{len(bits)}H", *(b + 0x7FFF + (b >> 16 & 1) >> 16 for b in bits))
            out[p["name"]] = dtype, p["shape"], data
        return out

    def write(self):
        """Writes the manifest and the files, with correct checksums."""
        for record in self.manifest["files"]:
            name = record["name"]
            record["bytes"], crc = self.files[name].write(self.path.parent / name)
            record["header_crc32c"] = f"{crc:08x}"
        self.write_manifest()

    def write_manifest(self):
        rest = (json.dumps(self.manifest)[1:] + "\n").encode()
        self.path.write_bytes(b'{"crc32c": "%08x",\n' % crc32c(rest) + rest)
