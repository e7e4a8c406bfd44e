"""Communicators: functions of Python in place of a transport, exchanges of the caller's own."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import muonrt
from ranks import on_threads
from test_use import optimizer


def over_functions(box, rank, size):
    """A communicator over Python functions: messages through a dictionary, a barrier's two ways."""
    meet = box["barrier"]

    def exchange(sends, receives, timeout):
        for peer, view in sends:
            box[rank, peer] = bytes(view)
        meet.wait(timeout)
        for peer, view in receives:
            view[:] = box[peer, rank]
        meet.wait(timeout)

    def allgather(mine, everything, timeout):
        box[rank] = bytes(mine)
        meet.wait(timeout)
        everything[:] = b"".join(box[r] for r in range(size))
        meet.wait(timeout)

    return muonrt.Comm.functions(rank, size, exchange, allgather, name="dictionary")


def test_a_communicator_of_python_functions():
    box = {"barrier": threading.Barrier(2)}
    whole = np.ones((4, 3), np.float32)
    optimizer(whole, np.arange(12, dtype=np.float32).reshape(4, 3)).step(0.1)

    def work(rank):
        comm = over_functions(box, rank, 2)
        # Only what both ranks take part in goes through the barrier of this test.
        assert comm.allgather(bytes([rank])) == [b"\0", b"\1"]
        w = np.ones((4, 3), np.float32)
        grad = np.arange(12, dtype=np.float32).reshape(4, 3)
        one = muonrt.Optimizer([muonrt.Param("w1", w, grad)], [muonrt.Group("muon")], comm,
                               replicas="each")
        one.step(0.1)
        one.close()
        comm.close()
        return w.tobytes()

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(work, range(2), timeout=60)) == [whole.tobytes()] * 2


def test_an_exception_in_a_function_is_told():
    def broken(*arguments):
        raise ValueError("the cable is out")

    comm = muonrt.Comm.functions(0, 2, broken, broken)
    with pytest.raises(muonrt.CommError, match="ValueError: the cable is out"):
        comm.barrier()


def test_functions_hear_of_an_abort_and_the_end():
    heard = []

    def waits(*arguments):
        heard.append("waits")
        while len(heard) < 2:
            time.sleep(0.01)
        raise ValueError("woken")

    comm = muonrt.Comm.functions(0, 2, waits, waits, caller_thread_only=False,
                                 abort=lambda *said: heard.append(said),
                                 close=lambda: heard.append("closed"))
    errors = []

    def barrier():
        try:
            comm.barrier()
        except muonrt.Error as error:
            errors.append(error)

    thread = threading.Thread(target=barrier)
    thread.start()
    while not heard:
        time.sleep(0.01)
    comm.abort("enough", muonrt.TimeoutError.status)
    thread.join(30)
    assert type(errors[0]) is muonrt.TimeoutError and "enough" in str(errors[0])
    comm.close()
    assert heard[0] == "waits" and heard[-1] == "closed" and len(heard) == 3
    assert heard[1] == ("enough", muonrt.TimeoutError.status)


@pytest.mark.parametrize("first", ["", "x"])
def test_a_text_that_is_cut_inside_a_character(first):
    def fails(*arguments):
        raise ValueError("woken")

    heard = []
    comm = muonrt.Comm.functions(0, 2, fails, fails, caller_thread_only=False,
                                 abort=lambda *said: heard.append(said))
    comm.abort(first + "\u00e9" * 4000)
    with pytest.raises(muonrt.AbortedError, match="\u00e9\u00e9"):
        comm.barrier()
    assert "\u00e9\u00e9" in heard[0][0]


def moves(comm):
    """To the next rank and to oneself; sizes by rank."""
    after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    own, got = np.full(3, comm.rank, np.int32), bytearray(before + 1)
    kept = np.zeros_like(own)
    comm.exchange([(after, bytes([comm.rank] * (comm.rank + 1))), (comm.rank, own)],
                  [(before, got), (comm.rank, kept)])
    assert (kept == own).all()
    return bytes(got)


def test_exchange():
    assert on_threads(3, moves) == [bytes([2] * 3), bytes([0]), bytes([1] * 2)]
    with muonrt.Comm.self() as comm, pytest.raises(TypeError):
        comm.exchange([(0, "text")], [])
    with muonrt.Comm.self() as comm, pytest.raises(BufferError):
        comm.exchange([(0, b"x")], [(0, b"y")])


def one_bad_argument(comm):
    """Rank 1 alone has logits of another dtype; the step after is whole on both."""
    w, grad = np.ones((4, 3), np.float32), np.ones((4, 3), np.float32)
    one = muonrt.Optimizer([muonrt.Param("w", w, grad)], [muonrt.Group("muon")], comm)
    for bad in ({"qk_logits": np.zeros(1, np.float64)}, {"grad_scale_inv": "x"}):
        with pytest.raises(muonrt.Error, match="qk_logits|grad_scale_inv" if comm.rank else None):
            one.step(0.1, **(bad if comm.rank == 1 else {}))
    assert one.step(0.1).step == one.steps == 1
    return w.tobytes()


def test_a_bad_argument_of_one_rank_ends_the_step_of_all():
    first, second = on_threads(2, one_bad_argument)
    assert first == second
