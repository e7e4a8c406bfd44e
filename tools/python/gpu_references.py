"""Measures how long PyTorch and other libraries need on a GPU for the work that `muonrt bench gemm`,
`muonrt bench ns` and `muonrt bench step` measure.

  python tools/python/gpu_references.py [--products SHAPES] [--ns SHAPES] [--steps LIST[;LIST...]] [--json]

SHAPES is a list of rows x columns [x count], separated by commas, with the short side first. A LIST
is the name gpt2-124m, or a list of such shapes and of lengths of vectors for AdamW. Operands are
bf16 and parameters are f32. All values are normally distributed.

The references are
  --products  torch.bmm, a symmetric kernel in Triton, and the symmetric product of QuACK;
  --ns        the standard form in PyTorch, and gram-newton-schulz;
  --steps     torch.optim.Muon with AdamW, and the same formulas with batched products and foreach
              passes, both with and without a CUDA graph.

References that are not installed are left out. The others run in turn. A product, or the update of
a step, counts as wrong if its difference from PyTorch's is too large to be a rounding error. A
result of Newton-Schulz counts as wrong if it is not finite. `--device cpu` runs the references that
need no GPU, which is useful as a test of this script with small shapes.
"""

import argparse
import json
import statistics
import sys
import time

try:
    import torch
except ImportError:
    print(json.dumps({"rows": [], "left_out": {"PyTorch": "this Python has no torch"}}))
    sys.exit(0)

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
MUON = dict(lr=0.02, momentum=0.95, weight_decay=0.1)
COLD_BYTES = 128 << 20  # total size of the copies of operands, so that no cache holds them
LEAD_MS, REGION_MS = 20, 0.33  # as in `muonrt bench gemm --steady`

if triton:

    @triton.jit
    def symmetric_kernel(x, out, m, n, x_matrix, out_matrix, ROWS: tl.constexpr, DEPTH: tl.constexpr):
        """Computes a square tile of X X^T on or above the diagonal, and writes the tile and its
        transpose."""
        index, matrix = tl.program_id(0), tl.program_id(1).to(tl.int64)
        # Finds row <= col with index = col (col + 1) / 2 + row.
        col = ((tl.sqrt(8.0 * index + 1.0) - 1.0) / 2.0).to(tl.int32)
        col = tl.where(col * (col + 1) // 2 > index, col - 1, col)
        col = tl.where((col + 1) * (col + 2) // 2 <= index, col + 1, col)
        row = index - col * (col + 1) // 2
        rows, cols = row * ROWS + tl.arange(0, ROWS), col * ROWS + tl.arange(0, ROWS)
        depth = tl.arange(0, DEPTH)
        left = x + matrix * x_matrix + (rows % m)[:, None] * n + depth[None, :]
        right = x + matrix * x_matrix + (cols % m)[None, :] * n + depth[:, None]
        total = tl.zeros((ROWS, ROWS), dtype=tl.float32)
        for k in range(0, n, DEPTH):
            a = tl.load(left, mask=depth[None, :] < n - k, other=0.0)
            b = tl.load(right, mask=depth[:, None] < n - k, other=0.0)
            total = tl.dot(a, b, total)
            left += DEPTH
            right += DEPTH
        value = total.to(out.dtype.element_ty)
        inside = (rows[:, None] < m) & (cols[None, :] < m)
        base = out + matrix * out_matrix
        tl.store(base + rows[:, None] * m + cols[None, :], value, mask=inside)
        tl.store(base + cols[None, :] * m + rows[:, None], value, mask=inside)


def numbers(text):
    return tuple(int(n) for n in text.split("x"))


def batch_of(text):
    """Returns (rows, columns, count)."""
    return (*numbers(text), 1)[:3]


def normal(*shape, device, dtype=torch.float32):
    return torch.randn(shape, device=device).to(dtype)


def synchronize(device):
    if device == "cuda":
        torch.cuda.synchronize()


def in_turns(works, iters, device):
    """Returns {name: median milliseconds}. @param works {name: work(number)}, which enqueues one
    run."""
    milliseconds = {name: [] for name in works}
    runs = {}
    for turn in range(-2, iters):
        for name, work in works.items():
            begin = time.perf_counter()
            for i in range(runs.get(name, (1, 1))[0] if device == "cuda" else 0):
                work(i)
            if device == "cuda":
                first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                first.record()
            repeats = runs.get(name, (1, 1))[1]
            for i in range(repeats):
                work(i)
            if device == "cuda":
                last.record()
                last.synchronize()
                ms = first.elapsed_time(last) / repeats
            else:
                ms = (time.perf_counter() - begin) * 1e3
            runs[name] = (int(LEAD_MS / ms) + 1, min(100, int(REGION_MS / ms) + 1))
            if turn >= 0:
                milliseconds[name].append(ms)
    return {name: statistics.median(list) for name, list in milliseconds.items()}


def wall_clock_in_turns(works, iters, device):
    """Returns {name: median milliseconds}, measured on the host as in `muonrt bench step`: the host
    waits for the GPU before and after each run."""
    milliseconds = {name: [] for name in works}
    for turn in range(-2, iters):
        for name, work in works.items():
            synchronize(device)
            begin = time.perf_counter()
            work()
            synchronize(device)
            if turn >= 0:
                milliseconds[name].append((time.perf_counter() - begin) * 1e3)
    return {name: statistics.median(list) for name, list in milliseconds.items()}


def beyond_rounding(got, want, share=0.02):
    """Returns 1 if the RMS of the difference exceeds `share` times the RMS of `want`, otherwise
    0."""
    difference = (got.float() - want.float()).square().mean().sqrt()
    return int(not difference <= share * want.float().square().mean().sqrt())


# Products and Newton-Schulz.


def standard_form(x):
    """Applies the iteration of torch.optim.Muon in bf16 to a batch of matrices with rows <=
    columns."""
    a, b, c = COEFFICIENTS
    x = x.bfloat16()
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    for _ in range(5):
        gram = torch.bmm(x, x.mT)
        polynomial = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.baddbmm(x, polynomial, x, beta=a)
    return x


def triton_symmetric(x, out):
    count, m, n = x.shape
    rows = 128
    tiles = triton.cdiv(m, rows)
    symmetric_kernel[(tiles * (tiles + 1) // 2, count)](x, out, m, n, m * n, m * m, rows, 64, num_warps=8, num_stages=3)


def products(shape, device, left_out):
    """Returns {name: function of (x, out)}. A function returns its result, and may ignore `out`."""
    found = {"torch.bmm": lambda x, out: torch.bmm(x, x.mT, out=out)}
    if triton and device == "cuda":
        found["Triton, symmetric"] = lambda x, out: (triton_symmetric(x, out), out)[1]
    else:
        left_out["Triton"] = "it is not installed, or there is no GPU"
    try:
        from quack.gemm_interface import gemm_symmetric
        found["QuACK, symmetric"] = lambda x, out: gemm_symmetric(x, x.mT)
    except Exception as error:  # this call also fails on GPUs that QuACK does not support
        left_out["QuACK"] = f"{type(error).__name__}: {error}"[:200]
    return found


def orthogonalizations(left_out):
    found = {"torch, standard form, bf16": lambda x, out: standard_form(x)}
    try:
        from gram_newton_schulz import GramNewtonSchulz
        gram = GramNewtonSchulz()
        found["gram-newton-schulz"] = lambda x, out: gram(x)
    except Exception as error:
        left_out["gram-newton-schulz"] = f"{type(error).__name__}: {error}"[:200]
    return found


def measure_batch(what, functions, shape, flops, same, args, rows):
    """@param same  whether all references compute the same function."""
    m, n, count = shape
    sets = max(1, min(100, COLD_BYTES // (2 * count * m * (m + n)) + 1)) if args.device == "cuda" else 1
    x = normal(sets, count, m, n, device=args.device, dtype=torch.bfloat16)
    out = torch.empty(sets, count, m, m, device=args.device, dtype=torch.bfloat16)
    want = next(iter(functions.values()))(x[0], out[0]).clone()
    wrong, works = {}, {}
    for name, function in functions.items():
        out.fill_(float("nan"))
        got = function(x[0], out[0])
        wrong[name] = beyond_rounding(got, want) if same else int(not got.isfinite().all())
        works[name] = lambda number, function=function: function(x[number % sets], out[number % sets])
    for name, ms in in_turns(works, args.iters, args.device).items():
        rows.append({"work": f"{what}, {m} x {n}" + (f", {count}" if count > 1 else ""), "by": name, "median_ms": ms,
                     "tflops": flops / ms * 1e-9, "wrong": wrong[name]})


# Steps.


def gpt2_124m():
    """Returns (matrices, other shapes): the shapes of the parameters for Muon and for AdamW."""
    d, matrices, others = 768, [], [(50257, 768), (1024, 768), (768,), (768,)]
    for _ in range(12):
        matrices += [(3 * d, d), (d, d), (4 * d, d), (d, 4 * d)]
        others += [(3 * d,), (d,), (4 * d,), (d,)] + 4 * [(d,)]
    return matrices, others


def shapes_of(text):
    if text == "gpt2-124m":
        return gpt2_124m()
    lists = [numbers(word) for word in text.split(",")]
    matrices = [shape[:2] for shape in lists if len(shape) > 1 for _ in range((*shape, 1)[2])]
    return matrices, [shape for shape in lists if len(shape) == 1]


def parameters(shapes, device):
    torch.manual_seed(1)
    made = [torch.nn.Parameter(0.02 * normal(*shape, device=device)) for shape in shapes]
    for p in made:
        p.grad = normal(*p.shape, device=device)
    return made


class BatchedMuon:
    """Computes the update of torch.optim.Muon with batched products over all matrices of the same
    shape, and with foreach passes."""

    def __init__(self, params, lr, momentum, weight_decay):
        self.params, self.lr, self.momentum, self.weight_decay = params, lr, momentum, weight_decay
        self.moments = [torch.zeros_like(p) for p in params]
        self.batches = {}  # for each shape in the iteration: (index, whether it is transposed)
        for i, p in enumerate(params):
            tall = p.shape[0] > p.shape[1]
            self.batches.setdefault(tuple(sorted(p.shape)), []).append((i, tall))

    @torch.no_grad()
    def step(self):
        gradients = [p.grad for p in self.params]
        torch._foreach_lerp_(self.moments, gradients, 1 - self.momentum)
        directions = torch._foreach_lerp(gradients, self.moments, self.momentum)
        updates = [None] * len(self.params)
        for entries in self.batches.values():
            stacked = torch.stack([directions[i].mT if tall else directions[i] for i, tall in entries])
            for (i, tall), update in zip(entries, standard_form(stacked)):
                scale = max(1, self.params[i].shape[0] / self.params[i].shape[1]) ** 0.5
                updates[i] = (update.mT if tall else update).float() * (-self.lr * scale)
        torch._foreach_mul_(self.params, 1 - self.lr * self.weight_decay)
        torch._foreach_add_(self.params, updates)


def adamw(params, **more):
    return [torch.optim.AdamW(params, lr=3e-4, **more)] if params else []


def graphed(optimizers):
    """Returns a function that replays one step of the optimizers."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            for optimizer in optimizers:
                optimizer.step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for optimizer in optimizers:
            optimizer.step()
    return graph.replay


def measure_steps(text, args, rows, left_out):
    matrices, others = shapes_of(text)
    flops = sum(5 * (4.0 * min(s) ** 2 * max(s) + 2.0 * min(s) ** 3) for s in matrices)
    kept = {}

    def variant(name, muon, **adamw_options):
        kept[name] = parameters(matrices + others, args.device)
        first, rest = kept[name][:len(matrices)], kept[name][len(matrices):]
        return [muon(first, **MUON)] + adamw(rest, **adamw_options)

    def eager(optimizers):
        return lambda: [optimizer.step() for optimizer in optimizers]

    works = {}
    if hasattr(torch.optim, "Muon"):
        works["torch.optim.Muon, AdamW"] = eager(variant("torch.optim.Muon, AdamW", torch.optim.Muon))
    else:
        left_out["torch.optim.Muon"] = "this PyTorch has none; install 2.9 or later"
    works["batched, foreach"] = eager(variant("batched, foreach", BatchedMuon))
    # When the results are compared, each optimizer has run one step from the same state.
    for work in works.values():
        work()
    reference, begin = next(iter(kept.values())), parameters(matrices + others, args.device)
    wrong = {name: sum(beyond_rounding(p - p0, r - p0, 0.1) for p, r, p0 in zip(params, reference, begin))
             for name, params in kept.items()}
    if args.device == "cuda":
        name = "batched, foreach, CUDA graph"
        works[name] = graphed(variant(name, BatchedMuon, fused=True, capturable=True))
    for name, ms in wall_clock_in_turns(works, args.iters, args.device).items():
        rows.append({"work": f"step of {text}", "by": name, "median_ms": ms, "tflops": flops / ms * 1e-9,
                     "wrong": wrong.get(name, 0)})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--products", metavar="SHAPES", default="", help="shapes of the products to measure")
    parser.add_argument("--ns", metavar="SHAPES", default="", help="shapes of the matrices to orthogonalize")
    parser.add_argument("--steps", metavar="LISTS", default="",
                        help="lists of parameters, separated by semicolons; one step for each list")
    parser.add_argument("--iters", type=int, default=10, help="number of timed runs of each reference (default: 10)")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda",
                        help="device of the references (default: cuda)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args()
    if args.device == "cuda" and not torch.cuda.is_available():
        print(json.dumps({"skipped": "PyTorch sees no GPU"}))
        return 77
    torch.backends.cuda.matmul.allow_tf32 = False
    rows, left_out = [], {}
    for m, n, count in map(batch_of, filter(None, args.products.split(","))):
        measure_batch("X X^T, bf16", products((m, n, count), args.device, left_out), (m, n, count),
                      2.0 * count * m * m * n, True, args, rows)
    for m, n, count in map(batch_of, filter(None, args.ns.split(","))):
        measure_batch("Newton-Schulz", orthogonalizations(left_out), (m, n, count),
                      count * 5 * (4.0 * m * m * n + 2.0 * m ** 3), False, args, rows)
    for text in filter(None, args.steps.split(";")):
        measure_steps(text, args, rows, left_out)
    if args.json:
        print(json.dumps({"rows": rows, "left_out": left_out}))
    else:
        for row in rows:
            print(f"{row['work']:<40} {row['by']:<32} {row['median_ms']:10.3f} ms {row['tflops']:8.0f} TFLOP/s"
                  + (f"  {row['wrong']} WRONG" if row["wrong"] else ""))
        for name, why in left_out.items():
            print(f"left out: {name}: {why}")
    return 1 if any(row["wrong"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
