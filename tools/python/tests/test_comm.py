"""Communicators: meetings, threads, functions of Python in place of a transport, exchanges."""

import queue
import threading
import time

import numpy as np
import pytest

import muonrt
from ranks import on_threads
from test_use import ones, optimizer

GRAD = np.arange(12, dtype=np.float32).reshape(4, 3)


def test_a_communicator_of_python_functions():
    boxes = {(sender, to): queue.Queue() for sender in range(2) for to in range(2)}

    def over_functions(rank):
        def exchange(sends, receives, timeout):
            for peer, view in sends:
                boxes[rank, peer].put(bytes(view))
            for peer, view in receives:
                view[:] = boxes[peer, rank].get(timeout=timeout)

        def allgather(mine, everything, timeout):
            for peer in range(2):
                boxes[rank, peer].put(bytes(mine))
            everything[:] = b"".join(boxes[peer, rank].get(timeout=timeout) for peer in range(2))

        return muonrt.Comm.functions(rank, 2, exchange, allgather, name="queues")

    def work(comm):
        assert comm.allgather(bytes([comm.rank])) == [b"\0", b"\1"]
        w = ones()
        one = optimizer(w, GRAD, comm=comm)
        one.step(0.1)
        one.close()
        return w.tobytes()

    whole = ones()
    optimizer(whole, GRAD).step(0.1)
    assert on_threads(2, work, over_functions) == [whole.tobytes()] * 2


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

    def abort():
        while not heard:
            time.sleep(0.01)
        comm.abort("enough", muonrt.TimeoutError.status)

    thread = threading.Thread(target=abort)
    thread.start()
    with pytest.raises(muonrt.TimeoutError, match="enough"):
        comm.barrier()
    thread.join(30)
    comm.close()
    assert heard == ["waits", ("enough", muonrt.TimeoutError.status), "closed"]


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


def test_one_thread_at_a_time():
    group = muonrt.ThreadGroup(2)
    comm, other = group.comm(0), group.comm(1)
    waits = threading.Thread(target=comm.barrier)
    waits.start()
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:  # the GIL is free while the barrier waits
        try:
            comm.allgather(b"x")
        except muonrt.InvalidStateError as error:
            assert "another thread" in str(error)
            break
    other.barrier()
    waits.join(30)
    assert not waits.is_alive()


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


def test_a_bad_argument_of_one_rank_ends_the_step_of_all():
    def work(comm):
        """Rank 1 alone has logits of another dtype; the step after is whole on both."""
        w = ones()
        one = optimizer(w, comm=comm)
        for bad in ({"qk_logits": np.zeros(1, np.float64)}, {"grad_scale_inv": "x"}):
            match = "qk_logits|grad_scale_inv" if comm.rank == 1 else None
            with pytest.raises(muonrt.Error, match=match):
                one.step(0.1, **(bad if comm.rank == 1 else {}))
        assert one.step(0.1).step == one.steps == 1
        return w.tobytes()

    first, second = on_threads(2, work)
    assert first == second


def test_rank_0_takes_a_free_port_and_tells_where():
    told = queue.Queue()

    def meets(rank):
        if rank == 0:
            return muonrt.Comm.tcp(0, 2, "127.0.0.1:0", b"12345678", listening=told.put)
        return muonrt.Comm.tcp(1, 2, told.get(timeout=60), b"12345678")

    assert on_threads(2, moves, meets) == [bytes([1] * 2), bytes([0])]

    def refuse(address):
        raise RuntimeError(f"no way to tell {address}")

    with pytest.raises(RuntimeError, match="no way to tell 127.0.0.1:[1-9]"):
        muonrt.Comm.tcp(0, 2, "127.0.0.1:0", b"12345678", listening=refuse)
    with pytest.raises(muonrt.InvalidArgumentError, match="nobody is told"):
        muonrt.Comm.tcp(0, 2, "127.0.0.1:0", b"12345678")


def test_ranks_meet_in_a_folder(tmp_path):
    for secret in (b"a secret", None):
        def meets(rank):
            return muonrt.Comm.folder(rank, 3, str(tmp_path), "run-1", secret=secret, timeout=20)

        assert on_threads(3, moves, meets) == [bytes([2] * 3), bytes([0]), bytes([1] * 2)]
        assert list(tmp_path.iterdir()) == []
    with pytest.raises(muonrt.InvalidArgumentError, match="run id"):
        muonrt.Comm.folder(0, 2, str(tmp_path), "run/1")
