"""Fits a two-layer network in NumPy. Its matrices are sharded by rows over processes.

  python numpy_ranks.py [RANKS]
"""

import multiprocessing
import sys
import tempfile

import numpy as np

import muonrt

IN, HIDDEN, SAMPLES, STEPS = 16, 48, 256, 120
SHAPES = {"w1": (HIDDEN, IN), "w2": (1, HIDDEN)}


def gradients(weights, x, target):
    """Returns the loss and the gradients of mean((w2 tanh(w1 x) - target)^2)."""
    hidden = np.tanh(x @ weights["w1"].T)
    error = (hidden @ weights["w2"].T)[:, 0] - target
    back = 2 * error[:, None] / len(x)
    inner = back * weights["w2"] * (1 - hidden * hidden)
    return (error * error).mean(), {"w1": inner.T @ x, "w2": back.T @ hidden}


def train(comm):
    rng = np.random.default_rng(0)  # equal on every rank
    x = rng.uniform(-1, 1, (SAMPLES, IN)).astype(np.float32)
    target = (x * np.roll(x, -1, axis=1)).sum(axis=1)
    whole = {n: rng.uniform(-0.3, 0.3, s).astype(np.float32) for n, s in SHAPES.items()}

    rows = muonrt.Layout(muonrt.Mesh((comm.size,)), "S(0)")

    def mine(name, array):
        runs = rows.runs(SHAPES[name], comm.rank, 0)
        begin, end = runs[0] if runs else (0, 0)
        return np.ascontiguousarray(array[begin:end])

    shards = {name: mine(name, array) for name, array in whole.items()}
    params = [muonrt.Param("w1", shards["w1"], shape=SHAPES["w1"], layout=rows, group=0),
              muonrt.Param("w2", shards["w2"], shape=SHAPES["w2"], layout=rows, group=1)]
    groups = [muonrt.Group("muon", weight_decay=0.0), muonrt.Group("adamw", weight_decay=0.0)]
    first = None
    with muonrt.Optimizer(params, groups, comm) as optimizer:
        for step in range(STEPS):
            for name, shape in SHAPES.items():  # all-gather; shards may be uneven or empty
                longest = rows.local_shape(shape, 0)[0] * shape[1] * 4
                gathered = comm.allgather(shards[name].tobytes().ljust(longest, b"\0"))
                sizes = [int(np.prod(rows.local_shape(shape, r))) * 4 for r in range(comm.size)]
                joined = b"".join(g[:n] for g, n in zip(gathered, sizes))
                whole[name] = np.frombuffer(joined, np.float32).reshape(shape)
            loss, grads = gradients(whole, x, target)
            first = loss if first is None else first
            optimizer.set_grads([mine(name, grads[name]) for name in SHAPES])
            optimizer.step(0.05 * (1 - step / STEPS))
    if comm.rank == 0:
        print(f"{comm.size} ranks: loss {first:.4f} -> {loss:.4f}")
    assert loss < first / 20


def process(rank, size, folder):
    with muonrt.Comm.folder(rank, size, folder, "run") as comm:
        train(comm)


if __name__ == "__main__":
    size = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    with tempfile.TemporaryDirectory() as folder, multiprocessing.Pool(size) as ranks:
        ranks.starmap(process, [(rank, size, folder) for rank in range(size)], chunksize=1)
