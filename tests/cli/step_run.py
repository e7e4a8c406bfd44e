"""Runs `muonrt step` on small files, and muonrt_reference on the same values. The scripts whose names begin
with step use it.

  SCRIPT MUONRT MUONRT_REFERENCE [LAUNCHER...]
"""
import copy
import json
import math
import random
import re
import subprocess
import sys
from pathlib import Path

import step_files as files
from scratch import check, end, folder

MUONRT = Path(sys.argv[1]).resolve()
REFERENCE = Path(sys.argv[2]).resolve() if len(sys.argv) > 2 else None
LAUNCHER = sys.argv[3:]
EXACT = {"transport_dtype": "f32", "iteration_dtype": "f32"}


def values(seed, count, rounding=files.f32):
    source = random.Random(seed)
    return [rounding(source.gauss(0, 1)) for _ in range(count)]


def worst(wanted, got):
    return max((abs(a - b) for a, b in zip(wanted, got, strict=True)), default=0.0)


def part(rows, cols, lr_factor=1.0, **axis):
    """Returns a part of a matrix in the form that the reference reads."""
    return {"rows": list(rows), "cols": list(cols), "lr_factor": lr_factor, **axis}


class Case:
    """Parameters of given shapes and one gradient file for each step, in F32 or BF16."""

    def __init__(self, shapes, steps, dtype="F32", more=None):
        """`more` contains further tensors, which have no gradient."""
        self.shapes, self.steps, self.dtype = shapes, steps, dtype
        self.folder = folder("step")
        rounding = files.bf16 if dtype == "BF16" else files.f32

        def tensors(suffix):
            return {name: values(name + suffix, math.prod(shape), rounding) for name, shape in shapes.items()}
        self.start = tensors("")
        self.grads = [tensors(f" {i}") for i in range(steps)]
        self.write("in", self.start, more, {"from": "a test", "epoch": "3"})
        for i, grads in enumerate(self.grads):
            self.write(f"g{i}", grads)

    def write(self, name, tensors, more=None, metadata=None):
        files.write(self.folder / name, {key: (self.dtype, self.shapes[key.split("@")[0]], flat)
                                         for key, flat in tensors.items()} | (more or {}), metadata)

    def write_partial_grads(self):
        """Writes the files p0, p1, ... with two partial gradients for every gradient."""
        for i, grads in enumerate(self.grads):
            other = {name: values(f"{name} {i} other", len(flat)) for name, flat in grads.items()}
            self.write(f"p{i}", {f"{name}@0": flat for name, flat in other.items()} | {
                f"{name}@1": [files.f32(a - b) for a, b in zip(grads[name], flat)] for name, flat in other.items()})

    def run(self, config, *more, mesh=None, grads="g", params="in", out="out", steps=None, launcher=()):
        """Returns the digest of the output or, if the run fails, an error that begins with the exit code."""
        (self.folder / "opt.json").write_text(json.dumps(config))
        command = [*launcher, MUONRT, "step", "--params", self.folder / params, "--config",
                   self.folder / "opt.json", "--out", self.folder / out, *more]
        if not launcher:
            command += ["--ranks", math.prod(int(n) for n in re.findall(r"=(\d+)", mesh or ""))]
        for i in range(self.steps) if steps is None else steps:
            command += ["--grads", self.folder / f"{grads}{i}"]
        command += ["--mesh", mesh] if mesh else []
        self.done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
        if self.done.returncode:
            return f"{self.done.returncode}: {self.done.stderr}"
        found = re.search(r"^sha256: (\w+)$", self.done.stdout, re.M)
        return found.group(1) if found else self.done.stdout

    def found(self, out="out"):
        return {name: flat for name, (_, _, flat) in files.read_model(self.folder / out).items()}

    def same_state(self, what, one, other):
        done = subprocess.run([MUONRT, "state", "diff", self.folder / one / "state", self.folder / other / "state"],
                              capture_output=True, text=True)
        check(done.returncode == 0, f"{what}: the state differs: {done.stdout}{done.stderr}")

    def resumed(self, what, config, wanted, meshes, more=lambda i: (), grads="g", **how):
        """Runs the steps one by one, in place. Each step uses the next mesh and continues from the checkpoint of
        the previous step. Checks that the last step gives the digest `wanted` and the state of `out`."""
        params, state = "in", []
        for i in range(self.steps):
            mesh = meshes[i % len(meshes)]
            digest = self.run(config, *state, *more(i), "--state-out", mesh=mesh, grads=grads, params=params,
                              out="part", steps=[i], **(how if mesh else {}))
            params, state = "part", ["--state-in", self.folder / "part" / "state"]
        check(digest == wanted, f"{what}: resumed: {digest}, not {wanted}")
        self.same_state(f"{what}: resumed", "part", "out")

    def reference(self, config, rules=None):
        """Returns every tensor after all steps in float64. `rules` maps the name of a rule to keys
        that, in the reference, replace the keys of opt.json; None removes a key."""
        config = copy.deepcopy(config)
        for rule in config["rules"]:
            rule.update((rules or {}).get(rule["name"], {}))
        start = files.read(self.folder / "in")[0]
        text = json.dumps({
            "config": config, "tensors": {name: {"shape": shape, "values": flat}
                                          for name, (_, shape, flat) in start.items()},
            "grads": [{name: flat for name, (_, _, flat) in files.read(self.folder / f"g{i}")[0].items()}
                      for i in range(self.steps)]})
        return json.loads(subprocess.run([REFERENCE], input=text, check=True, capture_output=True, text=True).stdout)

    def compare(self, what, wanted, tolerance=2e-5):
        """Compares the output with `wanted`. The default tolerance allows a few f32 roundings, each amplified
        at most by the slopes of a list."""
        found = self.found()
        check(found.keys() == wanted.keys(), f"{what}: tensors {found.keys() ^ wanted.keys()}")
        for name in wanted.keys() & found.keys():
            off = worst(wanted[name], found[name])
            check(off <= tolerance, f"{what}: {name} is off by {off}")
