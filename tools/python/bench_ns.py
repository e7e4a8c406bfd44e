"""Compares Newton-Schulz of muonrt.orthogonalize with the same iteration in torch, on the host.

  python tools/python/bench_ns.py [--rounds 5] [--threads 1,2] [--cells 768x768 64x128x128 ...]

A ratio is the time of torch divided by the time of muonrt, so muonrt is faster if the ratio is above
1. torch and muonrt use the same input, coefficients, number of steps, iteration dtype and number of
threads. They run in turn, and the times are medians. In each turn, the timed run comes after runs of
at least 50 ms, because the other library's threads may still be spinning at first. For a batch,
torch uses batched products. If the aspect ratio of a matrix is at least 2, the benchmark prints a
second ratio, for muonrt's Gram form. If a result differs from torch's by more than rounding errors,
the exit code is 1.
"""

import argparse
import statistics
import sys
import time
from pathlib import Path

import torch

# The benchmark needs the installed package, not the sources next to this file.
sys.path[:] = [at for at in sys.path if Path(at).resolve() != Path(__file__).resolve().parent]
import muonrt  # noqa: E402

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
CELLS = ["768x768", "1024x4096", "2048x2048", "8x512x512", "64x128x128"]
DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
WARM_SECONDS = 0.05
# Largest RMS of the difference of two results, divided by the RMS of the result
TOLERANCE = {"bfloat16": 6e-2, "float32": 1e-4}


def newton_schulz(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Orthogonalizes like torch.optim.Muon, but uses batched products for a batch."""
    a, b, c = COEFFICIENTS
    add = torch.addmm if x.ndim == 2 else torch.baddbmm
    x = x.to(dtype)
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = add(x, add(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x


def measure(shape: tuple, dtype: str, threads: int, form: str, rounds: int) -> tuple:
    """Returns the median seconds of torch and of muonrt, and the relative difference."""
    torch.set_num_threads(threads)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    out = torch.empty(shape, dtype=DTYPES[dtype])
    works = (lambda: newton_schulz(x, DTYPES[dtype]),
             lambda: muonrt.orthogonalize(x, out=out, coefficients="keller_jordan", form=form,
                                          normalize="max_eps", iteration_dtype=dtype,
                                          threads=threads))
    expected, times = works[0](), ([], [])
    works[1]()
    error = float((out.double() - expected.double()).norm() / expected.double().norm())
    for _ in range(rounds):
        for work, taken in zip(works, times):
            warm = time.perf_counter() + WARM_SECONDS
            work()
            while time.perf_counter() < warm:
                work()
            start = time.perf_counter()
            work()
            taken.append(time.perf_counter() - start)
    return statistics.median(times[0]), statistics.median(times[1]), error


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="number of turns of each library (default: 5)")
    parser.add_argument("--threads", default="1,2", help="numbers of threads (default: 1,2)")
    parser.add_argument("--cells", nargs="+", default=CELLS, metavar="SHAPE",
                        help=f"shapes to measure: rows x columns, or matrices x rows x columns (default: {' '.join(CELLS)})")
    parser.add_argument("--dtypes", nargs="+", default=list(DTYPES), choices=DTYPES,
                        help="iteration dtypes to measure (default: all)")
    args = parser.parse_args()
    columns = [(dtype, int(n)) for dtype in args.dtypes for n in args.threads.split(",")]
    print(f"torch {torch.__version__} / muonrt, ratios of times")
    print("".join([f"{'shape':<16}"] + [f"{f'{d}, {n}':>16}" for d, n in columns]))
    wrong = False
    for cell in args.cells:
        shape = tuple(int(size) for size in cell.split("x"))
        wide = max(shape[-2:]) >= 2 * min(shape[-2:])
        line = f"{cell:<16}"
        for dtype, threads in columns:
            ratios = []
            for form in ["standard"] + ["gram"] * wide:
                theirs, ours, error = measure(shape, dtype, threads, form, args.rounds)
                ratios.append(f"{theirs / ours:.2f}")
                wrong |= not error < TOLERANCE[dtype]
            line += f"{' / '.join(ratios):>16}"
        print(line, flush=True)
    if wrong:
        raise SystemExit("results differ by more than rounding")


if __name__ == "__main__":
    main()
