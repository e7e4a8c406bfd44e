"""Compares a step of muonrt.torch.Muon on GPT-2 small with torch's optimizers and with an all-gather.

  python tools/python/bench.py [--layers 12] [--width 768] [--steps 5] [--dtype bfloat16]

In one process, the benchmark compares muonrt with torch's optimizers: torch.optim.Muon for matrices
and AdamW for the other parameters. On two gloo ranks, each of which holds some rows of every matrix,
it compares muonrt with an all-gather, as in muon_reference.py of microsoft/dion. In the all-gather,
each rank gathers the momentum of every matrix, orthogonalizes the whole matrix and applies its rows.

All optimizers use the same gradients. They iterate in the dtype of --dtype, except that the
unmodified torch.optim.Muon iterates in bfloat16. With --dtype default, muonrt iterates and exchanges
in its default dtypes, and the other optimizers iterate in bfloat16. The optimizers run their steps
in turn, and the table shows median times. `difference` is the RMS of the difference between two
updates, divided by the RMS of the update, for the worst parameter after two steps. If it is too
large to be a rounding error, the exit code is 1.
"""

import argparse
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Shard
from torch.optim import _muon

# The benchmark needs the installed package, not the sources next to this file.
sys.path[:] = [at for at in sys.path if Path(at).resolve() != Path(__file__).resolve().parent]
import muonrt.torch  # noqa: E402

SETTINGS = dict(lr=0.02, momentum=0.95, weight_decay=0.1)
ADAMW = dict(lr=3e-4, betas=(0.9, 0.95), weight_decay=0.01)
# Tolerance for `difference`, because the optimizers round and order float32 sums differently.
TOLERANCE = {"float32": 1e-4, "bfloat16": 6e-2, "default": 6e-2}


def shapes(args, tiny: bool = False) -> dict[str, tuple]:
    """Returns the shapes of GPT-2's parameters; matrices have the shape (outputs, inputs)."""
    d = args.width
    out = {"wte.weight": (50257, d), "wpe.weight": (1024, d)}
    for i in range(args.layers):
        block = {"attn.c_attn": 3 * d, "attn.c_proj": d, "mlp.c_fc": 4 * d}
        for name, rows in block.items():
            out |= {f"h.{i}.{name}.weight": (rows, d), f"h.{i}.{name}.bias": (rows,)}
        out |= {f"h.{i}.mlp.c_proj.weight": (d, 4 * d), f"h.{i}.mlp.c_proj.bias": (d,)}
        out |= {f"h.{i}.ln_{k}.{part}": (d,) for k in (1, 2) for part in ("weight", "bias")}
    out |= {"ln_f.weight": (d,), "ln_f.bias": (d,)}
    return {name: tuple(2 for _ in shape) for name, shape in out.items()} if tiny else out


def split(named) -> list[list]:
    """Returns the parameters that Muon updates, and those that AdamW updates."""
    return [[p for name, p in named if muonrt.route(name, p.ndim)[0] == role]
            for role in ("muon", "adamw")]


def newton_schulz(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Orthogonalizes like torch.optim.Muon, but iterates in `dtype`."""
    tall = x.shape[0] > x.shape[1]
    x = (x.T if tall else x).to(dtype)
    x = x / x.norm().clamp(min=1e-7)
    for _ in range(5):
        gram = x @ x.T
        square = torch.addmm(gram, gram, gram, beta=-4.7750, alpha=2.0315)
        x = torch.addmm(x, square, x, beta=3.4445)
    return x.T if tall else x


class Torch:
    """Runs torch.optim.Muon and AdamW. In float32, newton_schulz() above replaces torch's
    function."""

    def __init__(self, named, dtype):
        if dtype is torch.float32:
            _muon._zeropower_via_newtonschulz = lambda x, *_: newton_schulz(x, dtype)
        matrices, rest = split(named)
        self.optimizers = [torch.optim.Muon(matrices, **SETTINGS),
                           torch.optim.AdamW(rest, **ADAMW)]

    def step(self):
        for optimizer in self.optimizers:
            optimizer.step()


class AllGather:
    """Runs a step in which every rank gathers and orthogonalizes every matrix."""

    def __init__(self, named, dtype):
        self.dtype = dtype
        self.matrices, rest = split(named)
        self.momenta = [torch.zeros_like(p) for p in self.matrices]
        self.adamw = torch.optim.AdamW(rest, **ADAMW)

    @torch.no_grad()
    def step(self):
        rank, size, beta = dist.get_rank(), dist.get_world_size(), SETTINGS["momentum"]
        for p, m in zip(self.matrices, self.momenta):
            m.lerp_(p.grad, 1 - beta)
            rows, cols = p.shape  # of this rank's shard
            whole = p.new_empty(rows * size, cols)
            dist.all_gather_into_tensor(whole, p.grad.lerp(m, beta))
            update = newton_schulz(whole, self.dtype)[rank * rows:(rank + 1) * rows]
            p.mul_(1 - SETTINGS["lr"] * SETTINGS["weight_decay"])
            p.add_(update, alpha=-SETTINGS["lr"] * max(1, rows * size / cols)**0.5)
        self.adamw.step()


def parameters(args, ranks: int, tiny: bool = False):
    """Returns [(name, parameter)]: whole tensors on one rank, otherwise this rank's rows. Every
    call returns the same values and gradients."""
    rank = dist.get_rank() if ranks > 1 else 0
    out = []
    for i, (name, shape) in enumerate(shapes(args, tiny).items()):
        generator = torch.Generator().manual_seed(i)
        pair = [torch.randn(shape, generator=generator) * 0.02 for _ in range(2)]
        pair = [whole.chunk(ranks)[rank].clone() for whole in pair]
        p = torch.nn.Parameter(pair[0])
        p.grad = pair[1]
        out.append((name, p))
    return out


def ours(args, named, ranks: int):
    if ranks > 1:  # DTensors over the same memory, as with FSDP2
        mesh = dist.init_device_mesh("cpu", (ranks,))
        whole = shapes(args)
        views = []
        for name, p in named:
            of = {"device_mesh": mesh, "placements": [Shard(0)], "run_check": False,
                  "shape": torch.Size(whole[name]),
                  "stride": torch.empty(whole[name], device="meta").stride()}
            q = torch.nn.Parameter(DTensor.from_local(p.detach(), **of))
            q.grad = DTensor.from_local(p.grad, **of)
            views.append((name, q))
        named = views
    dtypes = {} if args.dtype == "default" else {"iteration_dtype": args.dtype,
                                                 "transport_dtype": "float32"}
    return muonrt.torch.Muon(
        named, lr=SETTINGS["lr"], momentum=SETTINGS["momentum"], adamw_lr=ADAMW["lr"],
        betas=ADAMW["betas"], weight_decay=SETTINGS["weight_decay"],
        adamw_weight_decay=ADAMW["weight_decay"], **dtypes,
        muon={"coefficients": "keller_jordan", "normalize": "max_eps", "scale_rule": "original"})


def settle():
    if dist.is_initialized():
        dist.barrier()


def measure(args, ranks: int) -> tuple[float, float, float]:
    """Returns the median time in ms of muonrt and of the other optimizer, and the difference of
    their updates."""
    before = [p.detach().clone() for _, p in parameters(args, ranks)]
    mine, theirs = parameters(args, ranks), parameters(args, ranks)
    dtype = torch.float32 if args.dtype == "float32" else torch.bfloat16
    optimizers = [ours(args, mine, ranks), (AllGather if ranks > 1 else Torch)(theirs, dtype)]
    times = [], []
    for step in range(args.steps + 1):
        for optimizer, taken in zip(optimizers, times):
            settle()
            start = time.perf_counter()
            optimizer.step()
            settle()
            if step > 0:  # the first step allocates memory
                taken.append(1e3 * (time.perf_counter() - start))
        if step == 1:  # after one step the momentum is still a multiple of the gradient
            difference = torch.tensor(worst(before, mine, theirs))
        for _, p in mine + theirs:
            p.grad.copy_(p.grad.flip(-1))  # changes the gradient for the next step
    if ranks > 1:
        dist.all_reduce(difference, op=dist.ReduceOp.MAX)
    optimizers[0].close()
    return statistics.median(times[0]), statistics.median(times[1]), difference.item()


def worst(before, mine, theirs) -> float:
    def rms(x):
        return x.double().square().mean().sqrt()

    with torch.no_grad():
        return max(float(rms(p - q) / rms(q - b))
                   for b, (_, p), (_, q) in zip(before, mine, theirs))


def binding(args) -> float:
    """Returns the shortest time in ms that a step spends outside the library. For this, the
    optimizer gets the same number of parameters, but all of them are tiny."""
    optimizer = ours(args, parameters(args, 1, tiny=True), 1)
    outside = []
    for _ in range(50):
        start = time.perf_counter()
        optimizer.step()
        outside.append(time.perf_counter() - start - optimizer.last_report.seconds)
    optimizer.close()
    return 1e3 * min(outside)


def process(rank: int, args, ranks: int, store: str, queue) -> None:
    torch.set_num_threads(max(1, os.cpu_count() // ranks))
    if ranks > 1:
        dist.init_process_group("gloo", rank=rank, world_size=ranks, init_method=f"file://{store}")
    result = measure(args, ranks)
    if rank == 0:
        queue.put((result, binding(args) if ranks == 1 else None))
    if ranks > 1:
        dist.barrier()
        dist.destroy_process_group()


def on_ranks(args, ranks: int):
    queue = multiprocessing.get_context("fork").SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        # This process may fork, because it has not used torch.
        torch.multiprocessing.start_processes(process, (args, ranks, f"{folder}/store", queue),
                                              nprocs=ranks, start_method="fork")
    return queue.get()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=12, help="number of layers (default: 12)")
    parser.add_argument("--width", type=int, default=768, help="width of the model, an even number (default: 768)")
    parser.add_argument("--steps", type=int, default=5, help="number of measured steps (default: 5)")
    parser.add_argument("--dtype", default="float32", choices=TOLERANCE,
                        help="dtype in which the optimizers iterate (default: float32)")
    args = parser.parse_args()
    if args.width % 2:
        parser.error(f"--width is {args.width}, but must be even for two ranks; pass an even width")
    count = sum(torch.Size(shape).numel() for shape in shapes(args).values())
    print(f"GPT-2, {args.layers} layers of {args.width}, {count:,} parameters; "
          f"{os.cpu_count()} threads, torch {torch.__version__}")
    print(f"{'compared with':<42}{'ms':>9}{'muonrt ms':>11}{'ratio':>7}{'difference':>12}")
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    wrong = False
    for ranks, who in ((1, "torch.optim.Muon + AdamW"), (2, "2 ranks, all-gather")):
        (mine, theirs, difference), outside = on_ranks(args, ranks)
        wrong |= not difference < TOLERANCE[args.dtype]
        print(f"{who:<42}{theirs:>9.1f}{mine:>11.1f}{theirs / mine:>7.2f}{difference:>12.1e}"
              f"{'' if difference < TOLERANCE[args.dtype] else '  WRONG'}")
        if outside is not None:
            print(f"outside of the library (Python, binding): {outside:.2f} ms a step, "
                  f"{100 * outside / mine:.2f}% of muonrt's")
    if wrong:
        raise SystemExit("updates differ by more than rounding")


if __name__ == "__main__":
    main()
