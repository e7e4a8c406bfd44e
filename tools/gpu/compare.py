#!/usr/bin/env python3
"""What PyTorch and a Triton symmetric kernel take for the work of `muonrt bench gemm|ns`.

  tools/gpu/compare.py --gemm 4096x4096,... --ns 768x2048x32,...

Rows of {what, shape, median_ms, tflops, wrong}, as lines {"row": ...} when they are measured; the
last line is JSON with all of them. wrong is null where nothing is compared. What fails is said in a
line {"failed": ...}, and the rest goes on. Random values. Exit status 77 without PyTorch, or without
a GPU that it sees.
"""
import argparse
import json
import statistics
import sys
import time

try:
    import torch
except ImportError:
    print("no PyTorch")
    sys.exit(77)
if not torch.cuda.is_available():
    print("PyTorch sees no GPU")
    sys.exit(77)

try:
    import triton
    import triton.language as tl
except Exception:  # whatever it lacks, the rest is worth having
    triton = None

TILE, DEPTH = 128, 64

if triton:
    @triton.jit
    def gram_kernel(x, out, m, n, ldx, ldo, TILE: tl.constexpr, DEPTH: tl.constexpr):
        """One tile of X X^T on or above the diagonal, and its mirror image."""
        row, col = tl.program_id(0), tl.program_id(1)
        if col < row:
            return
        rows = row * TILE + tl.arange(0, TILE)
        cols = col * TILE + tl.arange(0, TILE)
        total = tl.zeros((TILE, TILE), dtype=tl.float32)
        for k in range(0, n, DEPTH):
            depth = k + tl.arange(0, DEPTH)
            left = tl.load(x + rows[:, None] * ldx + depth[None, :],
                           mask=(rows[:, None] < m) & (depth[None, :] < n), other=0.0)
            right = tl.load(x + cols[:, None] * ldx + depth[None, :],
                            mask=(cols[:, None] < m) & (depth[None, :] < n), other=0.0)
            total += tl.dot(left, tl.trans(right))
        value = total.to(tl.bfloat16)
        inside = (rows[:, None] < m) & (cols[None, :] < m)
        tl.store(out + rows[:, None] * ldo + cols[None, :], value, mask=inside)
        mirrored = (cols[:, None] < m) & (rows[None, :] < m)
        tl.store(out + cols[:, None] * ldo + rows[None, :], tl.trans(value), mask=mirrored)

    def symmetric_product(x):
        m, n = x.shape
        out = torch.empty((m, m), dtype=x.dtype, device=x.device)
        tiles = triton.cdiv(m, TILE)
        gram_kernel[(tiles, tiles)](x, out, m, n, x.stride(0), out.stride(0), TILE, DEPTH,
                                    num_warps=8, num_stages=3)
        return out


def region_ms(work, repeats, ahead):
    """Of one run: `repeats` in a row behind work that lets the host run ahead."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    ahead.zero_()
    begin.record()
    for _ in range(repeats):
        work()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / repeats


def median_ms(work, iterations=10):
    ahead = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")  # some 300 us
    warm = time.monotonic() + 0.05
    while time.monotonic() < warm:
        once = region_ms(work, 1, ahead)
    repeats = max(1, min(100, int(0.5 / max(once, 1e-3))))
    return statistics.median(region_ms(work, repeats, ahead) for _ in range(iterations))


def numbers(text):
    return [tuple(int(n) for n in shape.split("x")) for shape in text.split(",") if shape]


def beyond(got, want):
    """Elements further apart than two roundings to bf16 and the sum's own allow."""
    allowed = want.abs() * 2.0 ** -7 + want.abs().max() * 2.0 ** -10
    return int(((got.double() - want.double()).abs() > allowed.double()).sum())


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gemm", default="")
    parser.add_argument("--ns", default="")
    parser.add_argument("--step", default="", help="parameters of one step: matrices, and vectors for AdamW")
    arguments = parser.parse_args()
    torch.manual_seed(1)
    torch.backends.cuda.matmul.allow_tf32 = False  # what is compared with
    rows = []

    def add(what, shape, flops, work, wrong):
        """@param wrong  () -> elements that differ, or None."""
        name = f"{what} {'x'.join(map(str, shape))}"
        try:
            different, ms = wrong(), median_ms(work)
        except Exception as error:
            print(json.dumps({"failed": f"{name}: {type(error).__name__}: {error}"[:300]}), flush=True)
            return
        rows.append({"what": what, "shape": "x".join(map(str, shape)), "median_ms": round(ms, 4),
                     "tflops": round(flops / ms * 1e-9, 2), "wrong": different})
        print(json.dumps({"row": rows[-1]}), flush=True)

    def uniform(*shape):
        """As muonrt's benchmarks have them: in (-1, 1)."""
        return torch.rand(shape, device="cuda").mul_(2).sub_(1).bfloat16()

    def parameters(count, *shape):
        made = [torch.nn.Parameter(torch.zeros(shape, device="cuda").bfloat16()) for _ in range(count)]
        for p in made:
            p.grad = uniform(*shape)
        return made

    def orthogonalizing(m, n, count):
        return count * 5 * (4.0 * min(m, n) ** 2 * max(m, n) + 2.0 * min(m, n) ** 3)

    for m, n in numbers(arguments.gemm):
        x = uniform(m, n)
        want = x.float() @ x.float().T
        add("torch x @ x.T", (m, n), 2.0 * m * m * n, lambda: x @ x.T,
            lambda: beyond(x @ x.T, want))
        if triton:
            add("Triton symmetric", (m, n), 2.0 * m * m * n, lambda: symmetric_product(x),
                lambda: beyond(symmetric_product(x), want))
    if hasattr(torch.optim, "Muon"):
        for m, n, count in numbers(arguments.ns):
            optimizer = torch.optim.Muon(parameters(count, m, n), lr=0.02)
            add("torch.optim.Muon step", (m, n, count), orthogonalizing(m, n, count), optimizer.step,
                lambda: None)
        matrices, vectors, flops = [], [], 0.0
        for shape in numbers(arguments.step):
            if len(shape) == 1:
                vectors += parameters(1, *shape)
                continue
            m, n, count = (*shape, 1)[:3]
            matrices += parameters(count, m, n)
            flops += orthogonalizing(m, n, count)
        if matrices:
            both = [torch.optim.Muon(matrices, lr=0.02)]
            if vectors:
                both.append(torch.optim.AdamW(vectors, lr=0.02))
            add("torch.optim step", (arguments.step,), flops, lambda: [o.step() for o in both],
                lambda: None)
    wrong = sum(row["wrong"] or 0 for row in rows)
    print(json.dumps({"torch": torch.__version__, "triton": triton.__version__ if triton else None,
                      "wrong": wrong, "rows": rows}))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
