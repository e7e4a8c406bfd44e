"""Runs `muonrt step` on small files and says what the textbook makes of them; for the scripts whose
names begin with step_."""
import json
import math
import random
import re
import subprocess

import scratch
import step_files as files
import step_textbook as textbook


def values(seed, count, rounding=files.f32):
    source = random.Random(seed)
    return [rounding(source.gauss(0, 1)) for _ in range(count)]


def ranks_of(mesh):
    return math.prod(int(n) for n in re.findall(r"=(\d+)", mesh)) if mesh else 1


class Case:
    """Parameters of given shapes and one gradient file for each step, in F32 or BF16."""

    def __init__(self, muonrt, shapes, steps, dtype="F32"):
        self.muonrt, self.shapes, self.steps, self.dtype = muonrt, shapes, steps, dtype
        self.folder = scratch.folder("step")
        rounding = files.bf16 if dtype == "BF16" else files.f32

        def tensors(suffix):
            return {name: values(name + suffix, math.prod(shape), rounding)
                    for name, shape in shapes.items()}
        self.start = tensors("")
        self.grads = [tensors(f" {i}") for i in range(steps)]
        self.write("in", self.start)
        for i, grads in enumerate(self.grads):
            self.write(f"g{i}", grads)

    def write(self, name, tensors):
        files.write(self.folder / name, {key: (self.dtype, self.shapes[key.split("@")[0]], flat)
                                         for key, flat in tensors.items()})

    def run(self, config, *more, mesh=None, grads="g"):
        """Digest of the output; a text that says why where there is none."""
        (self.folder / "opt.json").write_text(json.dumps(config))
        command = [self.muonrt, "step", "--params", self.folder / "in", "--config",
                   self.folder / "opt.json", "--out", self.folder / "out", *more, "--ranks",
                   ranks_of(mesh)]
        for i in range(self.steps):
            command += ["--grads", self.folder / f"{grads}{i}"]
        command += ["--mesh", mesh] if mesh else []
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
        self.said = done.stderr
        found = re.search(r"^sha256: (\w+)$", done.stdout, re.M)
        return found.group(1) if done.returncode == 0 else f"{done.returncode}: {done.stderr}"

    def found(self):
        return {name: flat for name, (_, _, flat) in files.read(self.folder / "out")[0].items()}

    def matrix(self, name, after=None, factor=1.0, blocks=None, shape=None, transposed=False,
               **muon):
        """A tensor of matrices after all steps. Settings that are functions of the step are asked at
        each. after(t, rows): what happens to the weight then; blocks: (grid, period, rate factor);
        shape: of its matrices, where it is not the last two dimensions."""
        rows, cols = shape or self.shapes[name][-2:]
        turned = (lambda m: [list(row) for row in zip(*m)]) if transposed else (lambda m: m)
        out = []
        for at in range(0, len(self.start[name]), rows * cols):
            def cut(flat):
                return [flat[at + i * cols:at + (i + 1) * cols] for i in range(rows)]
            w, stats = turned(cut(self.start[name])), {}
            m = [[0.0] * len(row) for row in w]
            for t, grads in enumerate(self.grads):
                now = {k: f(t) if k == "momentum" and callable(f) else f for k, f in muon.items()}
                if blocks and t % blocks[1] != 0:
                    now.update(grid=blocks[0], grid_factor=blocks[2])
                gradient = turned(cut([factor * x for x in grads[name]]))
                textbook.muon_step(w, m, gradient, stats=stats, t=t + 1, **now)
                if after:
                    after(t, w)
            out += [x for row in turned(w) for x in row]
        return out

    def vector(self, name, every=1, after=None, factor=1.0, **adamw):
        """A parameter of AdamW after all steps."""
        w = self.start[name][:]
        m, v = [0.0] * len(w), [0.0] * len(w)
        for t, grads in enumerate(self.grads):
            if (t + 1) % every == 0:
                textbook.adamw_step(w, m, v, [factor * x for x in grads[name]], (t + 1) // every,
                                    **adamw)
            if after:
                after(t, [w])
        return w


def worst(wanted, got):
    return max(abs(a - b) for a, b in zip(wanted, got, strict=True))
