"""muonrt.torch.Muon where ranks say that they are on several machines: exchanges go by gloo."""

import os
import types

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from test_torch_faults import in_turn, lost_rank  # noqa: E402
from test_torch_ranks import (  # noqa: E402
    Model,
    fsdp,
    inject,
    one_rank,
    optimizer,
    stage_of,
    steps_of,
)
from test_torch_trainers import a_rank_is_gone  # noqa: E402
from torch_ranks import on_gloo  # noqa: E402

import muonrt  # noqa: E402
from muonrt import _torch_ranks as ranks  # noqa: E402


def apart(rank, size, work, *arguments):
    """`work` of a rank that believes to be alone on its machine."""
    made, over_gloo = [], ranks.over_gloo

    def counted(*given):
        made.append(given)
        return over_gloo(*given)

    os.environ["MASTER_ADDR"] = "127.0.0.1"
    ranks.socket = types.SimpleNamespace(gethostname=lambda: f"127.0.0.{rank + 1}")
    ranks.over_gloo = counted
    result = work(rank, size, *arguments)
    assert made
    return result


def test_bits_of_one_rank():
    want, momenta = one_rank()
    on_gloo(3, apart, steps_of, "fsdp2", want, momenta)
    on_gloo(4, apart, stage_of, want)  # groups of some ranks each


def test_a_lost_rank_is_named():
    for text in on_gloo(3, apart, lost_rank, "killed", lost=1)[::2]:
        assert "rank 1" in text, text


def late(rank, size):
    m = fsdp(Model(), size)
    one = optimizer(m, timeout_ms=3000)
    inject(m, 0)
    if rank == 0:
        with pytest.raises(muonrt.TimeoutError, match="rank 1 did not come before the deadline"):
            one.step()
        dist.barrier()
    else:
        dist.barrier()
        with pytest.raises(muonrt.TimeoutError, match="rank 0 reported.*rank 1"):
            one.step()
    one.close()
    return "told"


def unequal(rank, size):
    """Rank 1 alone is sent more, then less, than it expects."""
    for expected in (4, 16):
        comm, _ = ranks.comm_of(torch.device("cpu"))
        comm.set_timeout(20)
        sends, receives = ([(1, bytes(8))], []) if rank == 0 else ([], [(0, bytearray(expected))])
        if rank == 1:
            with pytest.raises(muonrt.MismatchError, match=f"sends 8 bytes.*expects {expected}"):
                comm.exchange(sends, receives)
        else:
            with pytest.raises(muonrt.Error, match="rank 1 reported.*sends 8 bytes"):
                comm.exchange(sends, receives)
                comm.barrier()
        comm.close()
        dist.barrier()


def faults(rank, size):
    unequal(rank, size)
    return late(rank, size), a_rank_is_gone(rank, size), in_turn(rank, size)


def test_late_and_gone_ranks_ctrl_c_and_lifetimes_and_forks():
    lates, gone, turns = zip(*on_gloo(2, apart, faults))
    assert lates == ("told", "told") and gone == ("told", "gone")
    said, steps, loader = zip(*turns)
    assert said == ("interrupted", "AbortedError")
    assert steps == (0.0, 0.0) and loader == ((6, 7), (6, 7))
