"""What goes wrong between ranks: none hangs, and the message names the rank."""

import gc
import itertools
import os
import signal
import threading

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from test_torch import inject as inject_alone  # noqa: E402
from test_torch import model  # noqa: E402
from test_torch_ranks import Model, fsdp, inject, optimizer  # noqa: E402
from torch_ranks import on_gloo  # noqa: E402

import muonrt  # noqa: E402
import muonrt.torch  # noqa: E402


def lost_rank(rank, size, how):
    m = fsdp(Model(), size)
    one = optimizer(m, timeout_ms=30000)
    inject(m, 0)
    one.step()
    if rank == 1:
        if how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        raise ValueError("the data are gone")
    try:
        one.step()
        return "no error"
    except muonrt.Error as error:
        return str(error)


@pytest.mark.parametrize("how", ["killed", "raises"])
def test_a_lost_rank_is_named(how):
    for text in on_gloo(3, lost_rank, how, lost=1)[::2]:
        assert "rank 1" in text, text


def interrupted(rank, size):
    m = fsdp(Model(), size)
    one = optimizer(m)
    inject(m, 0)
    if rank == 0:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # shells ignore it in background
        timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            one.step()  # rank 1 comes only when this has ended
        dist.barrier()
        return "interrupted"
    dist.barrier()
    with pytest.raises(muonrt.Error, match="rank 0.*interrupted by a signal") as told:
        one.step()
    return type(told.value).__name__


def interrupted_early(rank, size):
    """Ctrl-C while Python still reads gradients."""
    def ctrl_c(p):
        raise KeyboardInterrupt

    m = fsdp(Model(), size)
    one = optimizer(m)
    inject(m, 0)
    dist.barrier()  # both have an optimizer
    if rank == 0:
        one._gradient = ctrl_c
        with pytest.raises(KeyboardInterrupt):
            one.step()
    else:
        with pytest.raises(muonrt.AbortedError, match="rank 0.*interrupted by a signal"):
            one.step()
    dist.barrier()


def closed_in_another_order(rank, size):
    one = optimizer(fsdp(Model(), size))
    momentum = next(iter(one.state.values()))["step"]
    if rank == 0:
        del one
    else:
        one.close()
    gc.collect()
    return float(momentum)


class Tokens(torch.utils.data.Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, i):
        return torch.tensor(i % 11), torch.tensor(i % 3)


def forking_loader(rank, size):
    m = fsdp(Model(), size)
    one = optimizer(m)
    loader = torch.utils.data.DataLoader(Tokens(), 8, num_workers=2,
                                         multiprocessing_context="fork")
    for _ in range(2):  # workers begin and end while the optimizer lives
        for tokens, labels in loader:
            one.zero_grad()
            torch.nn.functional.cross_entropy(m(tokens), labels).backward()
            one.step()
    steps = one.last_report.step
    # The process group may go first.
    dist.barrier()
    dist.destroy_process_group()
    inject(m, 0)
    one.step()
    return steps, one.last_report.step


def in_turn(rank, size):
    interrupted_early(rank, size)
    return [work(rank, size) for work in
            (interrupted, closed_in_another_order, forking_loader)]


def test_ctrl_c_and_lifetimes_and_forks():
    said, steps, loader = zip(*on_gloo(2, in_turn))
    assert said == ("interrupted", "AbortedError")
    assert steps == (0.0, 0.0) and loader == ((6, 7), (6, 7))


@pytest.mark.parametrize("order", list(itertools.permutations(("m", "one", "comm"))))
def test_del_in_any_order(order):
    m, comm = model(), muonrt.Comm.self()
    one = muonrt.torch.Muon(m.named_parameters(), comm=comm)
    inject_alone(m, 0)
    one.step()
    momentum = one.state[m[0].weight]["momentum_buffer"]
    want = momentum.clone()
    held = {"m": m, "one": one, "comm": comm}
    del m, one, comm
    for name in order:
        del held[name]
        gc.collect()
        assert torch.equal(momentum, want)  # its memory is held
