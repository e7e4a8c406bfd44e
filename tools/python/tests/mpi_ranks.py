"""One rank of test_mpi.py, under mpirun; prints OK at the end."""

import sys
import time

import pytest
from mpi4py import MPI

import muonrt
from test_numpy import MATRIX, cut, one_rank, train

world = MPI.COMM_WORLD
rank, size = world.Get_rank(), world.Get_size()


def steps():
    layout = muonrt.Layout(muonrt.Mesh((size,)), "S(0)")
    with muonrt.Comm.mpi(world) as comm:
        assert (comm.rank, comm.size) == (rank, size)
        assert comm.allgather(bytes([rank])) == [bytes([r]) for r in range(size)]
        w, v = train(comm, layout)
    want_w, want_v = one_rank()
    assert w.tobytes() == cut(layout, want_w.reshape(MATRIX), rank, size).tobytes()
    assert v.tobytes() == want_v.tobytes()


def abort():
    comm = muonrt.Comm.mpi(world)
    comm.set_timeout(20)
    if rank == 1:
        time.sleep(0.2)
        comm.abort("enough of it" + "\1" * 900)
    with pytest.raises(muonrt.AbortedError, match="enough of it"):
        comm.barrier()
    comm.close()


def late():
    comm = muonrt.Comm.mpi(world)
    comm.set_timeout(0.3)
    if rank == 1:
        time.sleep(1)
    with pytest.raises(muonrt.TimeoutError, match="rank"):
        comm.barrier()
    comm.close()


def sizes():
    comm = muonrt.Comm.mpi(world)
    comm.set_timeout(5)
    mine = bytearray(4 if rank == 0 else 3)  # one is sent less than it expects, the other more
    with pytest.raises(muonrt.MismatchError, match="another size than the"):
        comm.exchange([(1 - rank, mine)], [(1 - rank, mine.copy())])
    comm.close()


def refused():
    for comm in (MPI.COMM_NULL, "world"):
        with pytest.raises(muonrt.InvalidArgumentError, match="mpi4py"):
            muonrt.Comm.mpi(comm)


for work in (steps, abort, late, sizes, refused):
    work()
    world.Barrier()  # a communicator that failed has left the caller's alone
sys.stdout.write(f"OK {rank}\n")
