"""Tests faults between ranks over TCP and over gloo: no rank hangs, and the message names the rank
that failed."""

import itertools
import os
import signal
import threading
import types

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from test_torch_ranks import each_way, stages  # noqa: E402
from torch_models import (  # noqa: E402
    Experts,
    Model,
    fsdp,
    full,
    inject,
    one_rank,
    optimizer,
    train,
    two_layers,
)
from torch_ranks import on_gloo  # noqa: E402

import muonrt  # noqa: E402
import muonrt.torch  # noqa: E402
from muonrt import _torch_ranks as ranks  # noqa: E402


def over_tcp(rank, size, work, *arguments):
    return work(rank, size, *arguments)


def over_gloo(rank, size, work, *arguments):
    """Runs `work` on a rank that seems to have its own machine, so that muonrt.torch uses gloo."""
    made, real = [], ranks.over_gloo

    def counted(*given):
        made.append(given)
        return real(*given)

    os.environ["MASTER_ADDR"] = "127.0.0.1"
    ranks.socket = types.SimpleNamespace(gethostname=lambda: f"127.0.0.{rank + 1}")
    ranks.over_gloo = counted
    result = work(rank, size, *arguments)
    assert made
    return result


def test_results_of_one_rank_over_gloo():
    on_gloo(3, over_gloo, each_way, one_rank(), one_rank(Experts))
    on_gloo(4, over_gloo, stages, one_rank()[0])  # each process group has only some of the ranks


def sharded(size, **settings):
    m = fsdp(Model(), size)
    return m, optimizer(m, **settings)


def lost_rank(rank, size, how):
    m, one = sharded(size, timeout_ms=30000)
    left = dist.new_group([0, 2])
    train(m, [0], one)
    if rank == 1:
        if how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        raise ValueError("the data are gone")
    with pytest.raises(muonrt.Error, match="rank 1"):
        one.step()
    dist.barrier(left)  # rank 0 forwards the error to rank 2


@pytest.mark.parametrize("way, how", [(over_tcp, "killed"), (over_tcp, "raises"),
                                      (over_gloo, "killed")])
def test_a_lost_rank_is_named(way, how):
    on_gloo(3, way, lost_rank, how, lost=1)


def unequal(rank, size):
    """Makes rank 1 receive more, and then less, than it expects."""
    for expected in (4, 16):
        comm, _ = ranks.comm_of(torch.device("cpu"))
        comm.set_timeout(20)
        sends, receives = ([(1, bytes(8))], []) if rank == 0 else ([], [(0, bytearray(expected))])
        if rank == 1:
            with pytest.raises(muonrt.MismatchError, match=f"sends 8 bytes, but rank 1 expects {expected}"):
                comm.exchange(sends, receives)
        else:
            with pytest.raises(muonrt.Error, match="rank 1 reported.*sends 8 bytes"):
                comm.exchange(sends, receives)
                comm.barrier()
        comm.close()
        dist.barrier()


def late(rank, size):
    m, one = sharded(size, timeout_ms=3000)
    inject(m, 0)
    if rank == 1:
        dist.barrier()
    with pytest.raises(muonrt.TimeoutError, match="with rank 1 did not complete before the timeout"
                       if rank == 0 else "rank 0 reported.*rank 1"):
        one.step()
    if rank == 0:
        dist.barrier()
    one.close()


def closed(rank, size):
    m, one = sharded(size, timeout_ms=20000)
    train(m, [0], one)
    if rank == 1:
        one.close()
    else:
        with pytest.raises(muonrt.Error, match="rank 1"):
            one.step()


def inactive(rank, size):
    m, one = sharded(size)
    inject(m, 0)
    m.up.weight.grad = None  # no rank has this gradient
    before = full(m.up.weight)
    if rank == 1:
        m.down.weight.grad = None  # rank 0 has this gradient, so it counts as zero here
    one.step()
    assert (full(m.up.weight) == before).all() and one.last_report.step == 1


def omitted(rank, size):
    """With omit_inactive, the ranks exchange nothing for an inactive parameter, and the results are
    bitwise identical."""
    (zeros, one), (omits, other) = sharded(size), sharded(size, omit_inactive=True)
    for step in range(4):
        for m, of_m in ((zeros, one), (omits, other)):
            inject(m, step)
            if step % 2 == 1:
                m.up.weight.grad = None
            of_m.step()
        for p, q in zip(zeros.parameters(), omits.parameters(), strict=True):
            assert torch.equal(ranks.local_of(p), ranks.local_of(q))
    assert other.last_report.bytes_sent < one.last_report.bytes_sent
    one.close()
    other.close()


def fails_on_one_rank(rank, size):
    m, one = sharded(size)
    inject(m, 0)
    if rank == 1:
        p = m.up.weight  # moves to memory of a different size
        p._local_tensor = p._local_tensor[:1]

    def phases():
        try:
            one.prepare()
            one.compute()
        finally:
            one.wait()

    for steps in phases, one.step:
        with pytest.raises(muonrt.InvalidArgumentError,
                           match="'up.weight'.*shape" if rank == 1 else "rank 1"):
            steps()


def rejected_on_one_rank(rank, size):
    m = Model().to("meta") if rank == 1 else Model()
    with pytest.raises(muonrt.InvalidArgumentError, match="rank 1.* is on device 'meta'"):
        optimizer(m)


def overflow_on_one_rank(rank, size):
    """If gradients overflow on one rank, both ranks skip the step. Other steps give the same
    results as without a GradScaler."""
    (m, one), (unscaled, other) = sharded(size), sharded(size)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    tokens = torch.arange(12) % 11
    for overflows in (False, True, False):
        scaler.scale(torch.nn.functional.cross_entropy(m(tokens), tokens % 3)).backward()
        if overflows and rank == 1:
            ranks.local_of(m.up.weight.grad)[0, 0] = float("inf")
        if not overflows:
            torch.nn.functional.cross_entropy(unscaled(tokens), tokens % 3).backward()
            other.step()
        scaler.step(one)
        scaler.update()
        assert one.last_report.skipped == overflows
        for p, q in zip(m.parameters(), unscaled.parameters()):
            assert torch.allclose(ranks.local_of(p), ranks.local_of(q), atol=1e-6)
        one.zero_grad()
        other.zero_grad()
    assert scaler.get_scale() == 512.0


def interrupted_early(rank, size):
    """Sends Ctrl-C while Python is still reading gradients."""
    def ctrl_c(name, p):
        raise KeyboardInterrupt

    m, one = sharded(size)
    inject(m, 0)
    dist.barrier()  # now both ranks have an optimizer
    if rank == 0:
        one._gradient_of = ctrl_c
        with pytest.raises(KeyboardInterrupt):
            one.step()
    else:
        with pytest.raises(muonrt.AbortedError, match="rank 0.*interrupted by a signal"):
            one.step()
    dist.barrier()


def interrupted(rank, size):
    m, one = sharded(size)
    inject(m, 0)
    if rank == 0:
        # Shells make background processes ignore SIGINT.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            one.step()  # rank 1 starts its step only after this step has ended
        dist.barrier()
        return
    dist.barrier()
    with pytest.raises(muonrt.AbortedError, match="rank 0.*interrupted by a signal"):
        one.step()


class Tokens(torch.utils.data.Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, i):
        return torch.tensor(i % 11), torch.tensor(i % 3)


def forking_loader(rank, size):
    m, one = sharded(size)
    loader = torch.utils.data.DataLoader(Tokens(), 8, num_workers=2,
                                         multiprocessing_context="fork")
    for _ in range(2):  # DataLoader workers start and end while the optimizer exists
        for tokens, labels in loader:
            one.zero_grad()
            torch.nn.functional.cross_entropy(m(tokens), labels).backward()
            one.step()
    assert one.last_report.step == 6
    # The process group may be destroyed before the optimizer.
    dist.barrier()
    dist.destroy_process_group()
    train(m, [0], one)
    assert one.last_report.step == 7


def in_turn(rank, size, works):
    for work in works:
        work(rank, size)


FAULTS = (inactive, omitted, fails_on_one_rank, rejected_on_one_rank, overflow_on_one_rank, closed,
          interrupted_early, interrupted, forking_loader)


@pytest.mark.parametrize("way, works", [(over_tcp, FAULTS), (over_gloo, (unequal, late, *FAULTS))])
def test_faults_end_on_every_rank_without_a_hang(way, works):
    on_gloo(2, way, in_turn, works)


@pytest.mark.parametrize("order", list(itertools.permutations(("m", "one", "comm"))))
def test_del_in_any_order(order):
    m, comm = two_layers(), muonrt.Comm.self()
    one = muonrt.torch.Muon(m.named_parameters(), comm=comm)
    train(m, [0], one)
    momentum = one.state[m[0].weight]["momentum_buffer"]
    want = momentum.clone()
    held = {"m": m, "one": one, "comm": comm}
    del m, one, comm
    for name in order:
        del held[name]
        assert torch.equal(momentum, want)  # the tensor keeps the memory alive
