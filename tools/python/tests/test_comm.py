"""Tests communicators: rendezvous, threads, Python functions as a transport, exchanges and
errors."""

import os
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


def test_an_exception_in_a_function_is_reported():
    def broken(*arguments):
        raise ValueError("the cable is out")

    comm = muonrt.Comm.functions(0, 2, broken, broken)
    with pytest.raises(muonrt.CommError, match="ValueError: the cable is out"):
        comm.barrier()


def test_abort_and_close_are_called():
    calls = []

    def waits(*arguments):
        calls.append("waits")
        while len(calls) < 2:
            time.sleep(0.01)
        raise ValueError("woken")

    comm = muonrt.Comm.functions(0, 2, waits, waits, caller_thread_only=False,
                                 abort=lambda *error: calls.append(error),
                                 close=lambda: calls.append("closed"))

    def abort():
        while not calls:
            time.sleep(0.01)
        comm.abort("enough", muonrt.TimeoutError.status)

    thread = threading.Thread(target=abort)
    thread.start()
    with pytest.raises(muonrt.TimeoutError, match="enough"):
        comm.barrier()
    thread.join(30)
    comm.close()
    assert calls == ["waits", ("enough", muonrt.TimeoutError.status), "closed"]


@pytest.mark.parametrize("first", ["", "x"])
def test_a_text_that_is_cut_inside_a_character(first):
    def fails(*arguments):
        raise ValueError("woken")

    errors = []
    comm = muonrt.Comm.functions(0, 2, fails, fails, caller_thread_only=False,
                                 abort=lambda *error: errors.append(error))
    comm.abort(first + "\u00e9" * 4000)
    with pytest.raises(muonrt.AbortedError, match="\u00e9\u00e9"):
        comm.barrier()
    assert "\u00e9\u00e9" in errors[0][0]


def test_one_thread_at_a_time():
    group = muonrt.ThreadGroup(2)
    comm, other = group.comm(0), group.comm(1)
    waits = threading.Thread(target=comm.barrier)
    waits.start()
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:  # the barrier releases the GIL while it waits
        try:
            comm.allgather(b"x")
        except muonrt.InvalidStateError as error:
            assert "another thread" in str(error)
            break
    other.barrier()
    waits.join(30)
    assert not waits.is_alive()


def moves(comm):
    """Sends one message to the next rank and one to the rank itself. The sizes depend on the
    rank."""
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
        """Only rank 1 passes an invalid argument. The next step runs on both ranks."""
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


def test_an_error_before_the_creation_ends_the_creation_of_all():
    def work(comm):
        """Only rank 1 passes an invalid setting. The communicator remains usable."""
        settings = {"window": "x"} if comm.rank == 1 else {}
        match = "window is 'x'" if comm.rank == 1 else "rank 1"
        with pytest.raises(muonrt.InvalidArgumentError, match=match):
            optimizer(comm=comm, **settings)
        return optimizer(comm=comm).step(0.1).step

    assert on_threads(2, work) == [1, 1]


def test_getters_during_a_step_of_another_thread():
    group = muonrt.ThreadGroup(2)
    made = [None, None]

    def make(rank):
        made[rank] = optimizer(comm=group.comm(rank))

    makers = [threading.Thread(target=make, args=(rank,)) for rank in range(2)]
    for maker in makers:
        maker.start()
    for maker in makers:
        maker.join(60)
    one, other = made
    step = threading.Thread(target=one.step, args=(0.1,))
    step.start()
    for getter in (lambda: one.steps, lambda: one.update_counts, one.counters, one.state_shards,
                   one.clipped_heads, lambda: one.find_param("w1")):
        deadline = time.monotonic() + 30
        with pytest.raises(muonrt.InvalidStateError, match="another thread"):
            while time.monotonic() < deadline:  # the step may not have started yet
                getter()
    other.step(0.1)
    step.join(30)
    assert one.steps == 1


def test_allreduce_sum():
    def work(comm):
        return comm.allreduce_sum([comm.rank + 1.0, 0.5]), comm.allreduce_sum(np.array([2.0]))

    assert on_threads(3, work) == [([6.0, 1.5], [6.0])] * 3


def fail(address):
    raise RuntimeError(f"cannot send {address}")


def test_rank_0_listens_at_a_free_port_and_passes_its_address():
    addresses = queue.Queue()

    def connect(rank):
        if rank == 0:
            return muonrt.Comm.tcp(0, 2, "127.0.0.1:0", b"0123456789abcdef", listening=addresses.put)
        return muonrt.Comm.tcp(1, 2, addresses.get(timeout=60), b"0123456789abcdef")

    assert on_threads(2, moves, connect) == [bytes([1] * 2), bytes([0])]

    with pytest.raises(RuntimeError, match="cannot send 127.0.0.1:[1-9]"):
        muonrt.Comm.tcp(0, 2, "127.0.0.1:0", b"0123456789abcdef", listening=fail)
    with pytest.raises(muonrt.InvalidArgumentError, match="listening"):
        muonrt.Comm.tcp(0, 2, "127.0.0.1:0", b"0123456789abcdef")


def test_ports_and_names_of_a_rendezvous():
    secret, addresses = bytes(16), queue.Queue()
    first = 20000 + os.getpid() % 200 * 40

    def connect(rank):
        address = "127.0.0.1:0" if rank == 0 else addresses.get(timeout=60)
        listening = addresses.put if rank == 0 else None
        return muonrt.Comm.tcp(rank, 2, address, secret, listening=listening,
                               ports=(first, first + 39))

    assert on_threads(2, moves, connect) == [bytes([1] * 2), bytes([0])]
    with pytest.raises(RuntimeError, match=f":{first}$"):
        muonrt.Comm.tcp(0, 2, "127.0.0.1:0", secret, ports=(first, first), listening=fail)
    with pytest.raises(muonrt.InvalidArgumentError, match="the ports are 6 to 5"):
        muonrt.Comm.tcp(0, 2, "127.0.0.1:0", secret, ports=(6, 5), listening=print)
    with pytest.raises(ValueError, match="address contains a NUL"):
        muonrt.Comm.tcp(0, 2, "127.0.0.1:0\0", secret, listening=print)
    with pytest.raises(ValueError, match="run_id contains a NUL"):
        muonrt.Comm.folder(0, 2, ".", "run\0", secret)


def test_rendezvous_in_a_folder(tmp_path):
    for secret in (b"a secret of 20 bytes", None):
        def connect(rank):
            return muonrt.Comm.folder(rank, 3, str(tmp_path), "run-1", secret=secret, timeout=20)

        assert on_threads(3, moves, connect) == [bytes([2] * 3), bytes([0]), bytes([1] * 2)]
        assert list(tmp_path.iterdir()) == []
    with pytest.raises(muonrt.InvalidArgumentError, match="run_id"):
        muonrt.Comm.folder(0, 2, str(tmp_path), "run/1")
