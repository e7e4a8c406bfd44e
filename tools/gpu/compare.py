#!/usr/bin/env python3
"""What PyTorch and a Triton symmetric kernel take for the work of `muonrt bench gemm|ns|step`.

  tools/gpu/compare.py --steady-gemm 4096x4096,... --steady 2 --gemm 512x512,... --step 768x768x12,32768 --ns 768x2048x32,...

Steps first, then products. Rows as lines {"row": ...} when they are measured; the last line is JSON
with all of them. Products are timed as muonrt's are: in turns, over as many operands as no cache holds,
behind copies that keep the GPU busy until all is enqueued (`ahead`: that it was), those of
--steady-gemm behind as long a warm-up (`steady_s`), each time behind 20 ms of its own work. Steps by
the wall clock, between two waits for the GPU. wrong is null where nothing is compared. What fails is
said in a line {"failed": ...} and in the list `failed`, what this machine does not have in `missing`;
the rest goes on. Normal values. Exit status 1 where something failed or is wrong; 77 without PyTorch,
or a GPU that it sees.
"""
import argparse
import inspect
import json
import statistics
import sys
import time

sys.dont_write_bytecode = True
try:
    import torch
except ImportError:
    print("no PyTorch")
    sys.exit(77)
if not torch.cuda.is_available():
    print("PyTorch sees no GPU")
    sys.exit(77)

missing = []
try:
    import triton_gram
except Exception as error:  # whatever it lacks, the rest is worth having
    triton_gram = None
    missing.append(f"Triton ({type(error).__name__}: {error})"[:200])
if not hasattr(torch.optim, "Muon"):
    missing.append("torch.optim.Muon")

# As tools/command/bench_timer.* has them.
COLD_BYTES, MOST_REPEATS = 128 << 20, 100
REGION_MS, WARM_MS, MOST_FILLER_MS = 0.33, 50, 50
LEAD_MS, MOST_LEAD = 20, 5000


class Filler:
    """Copies that the GPU is busy with while the host enqueues what is timed."""

    def __init__(self):
        self.source, self.target = (torch.zeros(64 << 20, dtype=torch.uint8, device="cuda")
                                    for _ in range(2))
        self.copies = 8
        self.enqueue(1)
        torch.cuda.synchronize()
        begin = time.perf_counter()
        self.enqueue(8)
        torch.cuda.synchronize()
        self.most = max(8, int(MOST_FILLER_MS / ((time.perf_counter() - begin) / 8 * 1e3)))

    def enqueue(self, copies):
        for _ in range(copies):
            self.target.copy_(self.source)


class Timed:
    """@param work  work(number) enqueues one run; numbers go up. @param steady  whether each time is
    taken at the power of this work."""

    def __init__(self, filler, work, steady=False):
        self.filler, self.work, self.steady, self.lead = filler, work, steady, 0
        self.next, self.repeats, self.ms, self.ahead = 0, 1, [], True

    def enqueue(self, runs):
        for _ in range(runs):
            self.work(self.next)
            self.next += 1

    def region(self):
        """(milliseconds of one run, whether the GPU began when all was enqueued)"""
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.enqueue(self.lead)
        self.filler.enqueue(self.filler.copies)
        begin.record()
        self.enqueue(self.repeats)
        end.record()
        ahead = not begin.query()
        end.synchronize()
        return begin.elapsed_time(end) / self.repeats, ahead

    def region_ahead(self):
        ms, ahead = self.region()
        while not ahead and 2 * self.filler.copies <= self.filler.most:
            self.filler.copies *= 2
            ms, ahead = self.region()
        return ms, ahead

    def warm_up(self):
        ms = self.region_ahead()[0]
        self.repeats = max(1, min(MOST_REPEATS, int(REGION_MS / max(ms, 1e-4)) + 1))
        if self.steady:
            self.lead = min(MOST_LEAD, int(LEAD_MS / max(ms, 1e-4)) + 1) if ms < LEAD_MS else 0

    def measure(self):
        ms, ahead = self.region_ahead()
        self.ms.append(ms)
        self.ahead = self.ahead and ahead


def in_turns(works, iterations=10, steady=0):
    end = time.monotonic() + max(WARM_MS * 1e-3, steady)
    for work in works:
        work.region()  # what it makes at first
    while time.monotonic() < end or any(not work.next > 1 for work in works):
        for work in works:
            work.warm_up()
    for _ in range(iterations):
        for work in works:
            work.measure()


def numbers(text):
    return [tuple(int(n) for n in shape.split("x")) for shape in text.split(",") if shape]


def normal(*shape):
    """As muonrt's benchmarks have them: sums of four uniform numbers, mean 0, variance 1."""
    out = torch.rand(shape, device="cuda")
    for _ in range(3):
        out.add_(torch.rand(shape, device="cuda"))
    return out.sub_(2).mul_(3 ** 0.5)


def beyond(got, want, terms):
    """Elements that are NaN, or further apart than two roundings to bf16 allow: of the sum, and of parts
    of it, which are as large as the root of its terms where the sum is near zero."""
    allowed = want.abs() * 2.0 ** -7 + terms ** 0.5 * 2.0 ** -6
    return int((~((got.float() - want).abs() <= allowed)).sum())


class Products:
    """X X^T of one size, alone or of a batch (`count`), X and the results at as many places as no cache
    holds."""

    def __init__(self, filler, m, n, count=None):
        self.filler, self.shape = filler, (m, n)
        self.sets = min(MOST_REPEATS, COLD_BYTES // (2 * (count or 1) * m * (m + n)) + 1)
        batch = (count,) if count else ()
        self.x = normal(*batch, m, n).bfloat16().expand(self.sets, *batch, m, n).contiguous()
        self.out = torch.empty(self.sets, *batch, m, m, dtype=torch.bfloat16, device="cuda")
        self.pairs = [(self.x[i], self.x[i].transpose(-1, -2), self.out[i]) for i in range(self.sets)]
        self.want = self.x[0].float() @ self.x[0].float().transpose(-1, -2)
        self.multiply = torch.bmm if count else torch.mm

    def wrong(self, work):
        """Elements of one result; work(0) makes it."""
        self.out.fill_(float("nan"))
        work(0)
        return beyond(self.out[0], self.want, self.shape[1])

    def torch(self, number):
        x, transposed, out = self.pairs[number % self.sets]
        self.multiply(x, transposed, out=out)

    def triton(self, config):
        tiles = triton_gram.order_of(self.shape[0], config[0], config[1])
        order = torch.tensor(tiles, dtype=torch.int32, device="cuda")

        def work(number):
            x, _, out = self.pairs[number % self.sets]
            triton_gram.multiply(x, out, order, len(tiles), config)
        return work

    def tune(self):
        """(the fastest configuration of Triton, milliseconds of each or why there are none)"""
        tried, best = {}, None
        for config in triton_gram.CONFIGS:
            name = triton_gram.named(config)
            try:
                work = self.triton(config)
                wrong = self.wrong(work)
                if wrong:
                    raise ValueError(f"{wrong} elements are wrong")
                timed = Timed(self.filler, work)
                in_turns([timed], iterations=3)
                tried[name] = round(statistics.median(timed.ms), 4)
                if best is None or tried[name] < tried[triton_gram.named(best)]:
                    best = config
            except Exception as error:  # such as more shared memory than there is
                tried[name] = f"{type(error).__name__}: {error}"[:200]
        if best is None:
            raise RuntimeError(f"no configuration of Triton's works: {tried}")
        return best, tried


class Compare:
    def __init__(self):
        self.rows, self.failed = [], []

    def attempt(self, name, work):
        """work(), or None; the rest goes on."""
        try:
            return work()
        except Exception as error:
            self.failed.append(f"{name}: {type(error).__name__}: {error}"[:600])
            print(json.dumps({"failed": self.failed[-1]}), flush=True)
            return None

    def add(self, what, shape, flops, ms, wrong, **more):
        self.rows.append({"what": what, "shape": shape, "median_ms": round(ms, 4),
                          "tflops": round(flops / ms * 1e-9, 2), "wrong": wrong, **more})
        print(json.dumps({"row": self.rows[-1]}), flush=True)

    def products(self, filler, steady, m, n, count=None):
        name = f"{m}x{n}" + (f"x{count}" if count else "")
        products = Products(filler, m, n, count)
        works = {"torch.bmm" if count else "torch x @ x.T": (products.torch, {})}
        if triton_gram and not count:
            found = self.attempt(f"Triton symmetric {name}", products.tune)
            if found:
                works["Triton symmetric"] = (products.triton(found[0]), {
                    "config": triton_gram.named(found[0]), "tried": found[1]})
        timed = {what: Timed(filler, work, steady > 0) for what, (work, _) in works.items()}
        in_turns(list(timed.values()), steady=steady)
        for what, (work, more) in works.items():
            self.add(what, name, 2.0 * m * m * n * (count or 1), statistics.median(timed[what].ms),
                     products.wrong(work), sets=products.sets, ahead=timed[what].ahead, steady_s=steady,
                     **more)

    def steps(self, what, shape, optimizers, flops):
        """Whole steps by the wall clock, as `bench step` has them. @param optimizers  () -> list."""
        both = optimizers()
        times = []
        for number in range(12):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for optimizer in both:
                optimizer.step()
            torch.cuda.synchronize()
            if number > 1:
                times.append((time.perf_counter() - begin) * 1e3)
        self.add(what, shape, flops, statistics.median(times), None, **dtypes_of(both))


def dtypes_of(optimizers):
    parameters = [p for o in optimizers for group in o.param_groups for p in group["params"]]
    # AdamW's count of steps is a state, too, of one element.
    states = [v for o in optimizers for state in o.state.values() for v in state.values()
              if torch.is_tensor(v) and v.numel() > 1]

    def named(tensors):
        return "+".join(sorted({str(t.dtype).removeprefix("torch.") for t in tensors}))
    return {"params": named(parameters), "grads": named([p.grad for p in parameters]),
            "state": named(states)}


def parameters(count, *shape):
    """f32, as those of `bench step`; Muon casts what it orthogonalizes to bf16 itself."""
    made = [torch.nn.Parameter(torch.zeros(shape, device="cuda")) for _ in range(count)]
    for p in made:
        p.grad = normal(*shape)
    return made


def orthogonalizing(m, n, count):
    return count * 5 * (4.0 * min(m, n) ** 2 * max(m, n) + 2.0 * min(m, n) ** 3)


def muon_variants():
    """(words behind the name, options of torch.optim.Muon)"""
    if not hasattr(torch.optim, "Muon"):
        return []
    switch = "use_addmm" in inspect.signature(torch.optim.Muon).parameters
    return [("", {})] + ([(", addmm", {"use_addmm": True})] if switch else [])


def optimizers_of(shapes, options):
    """torch.optim.Muon for matrices, AdamW for vectors."""
    sized = [(*shape, 1)[:3] for shape in shapes if len(shape) > 1]
    both = [torch.optim.Muon([p for m, n, count in sized for p in parameters(count, m, n)], lr=0.02,
                             **options)]
    vectors = [p for shape in shapes if len(shape) == 1 for p in parameters(1, *shape)]
    return both + ([torch.optim.AdamW(vectors, lr=0.02)] if vectors else [])


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gemm", default="", help="products: rows x columns [x how many]")
    parser.add_argument("--steady-gemm", default="", help="before those: products behind a long warm-up")
    parser.add_argument("--steady", type=float, default=2, help="its seconds")
    parser.add_argument("--step", default="", help="parameters of one step: matrices, and vectors for AdamW")
    parser.add_argument("--ns", default="", help="steps of matrices of one shape")
    arguments = parser.parse_args()
    torch.manual_seed(1)
    torch.backends.cuda.matmul.allow_tf32 = False  # what is compared with
    compare = Compare()
    # Before the products: those in Triton are compiled, which takes long.
    steps = [("torch.optim step", arguments.step, numbers(arguments.step))] if arguments.step else []
    steps += [("torch.optim.Muon step", "x".join(map(str, shape)), [shape])
              for shape in numbers(arguments.ns)]
    for what, name, shapes in steps:
        flops = sum(orthogonalizing(*(*shape, 1)[:3]) for shape in shapes if len(shape) > 1)
        for words, options in muon_variants():
            compare.attempt(f"{what}{words} {name}", lambda: compare.steps(
                what + words, name, lambda: optimizers_of(shapes, options), flops))
    filler = compare.attempt("filler", Filler)
    for shapes, steady in ((arguments.steady_gemm, arguments.steady), (arguments.gemm, 0)):
        for shape in numbers(shapes) if filler else []:
            compare.attempt(f"products of {'x'.join(map(str, shape))}",
                            lambda: compare.products(filler, steady, *shape))
    wrong = sum(row["wrong"] or 0 for row in compare.rows)
    print(json.dumps({
        "torch": torch.__version__, "triton": triton_gram.triton.__version__ if triton_gram else None,
        # bf16 products that are cut in depth may then be rounded to bf16 between the parts.
        "allow_bf16_reduced_precision_reduction":
            str(torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction),
        "wrong": wrong, "failed": compare.failed, "missing": missing, "rows": compare.rows}))
    return 1 if wrong or compare.failed else 0


if __name__ == "__main__":
    sys.exit(main())
