"""Tests Comm.mpi over ranks of mpirun, if mpirun and mpi4py are installed. mpirun runs this file as
a program, which is then one rank."""

import os
import shutil
import subprocess
import sys
import time

import pytest

import muonrt
from test_numpy import MATRIX, cut, one_rank, train

pytest.importorskip("mpi4py")
if shutil.which("mpirun") is None:
    pytest.skip("no mpirun", allow_module_level=True)

# With these settings, Open MPI 4 and 5 run as root, and with more ranks than cores. Other MPI
# libraries ignore them.
ENV = os.environ | {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                    "OMPI_MCA_rmaps_base_oversubscribe": "1",
                    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}


def mpirun(ranks, *words):
    return subprocess.run(["mpirun", "-n", ranks, sys.executable, *words], text=True,
                          capture_output=True, timeout=120, env=ENV)


def steps(world):
    rank, size = world.Get_rank(), world.Get_size()
    layout = muonrt.Layout(muonrt.Mesh((size,)), "S(0)")
    with muonrt.Comm.mpi(world) as comm:
        assert (comm.rank, comm.size) == (rank, size)
        assert comm.allgather(bytes([rank])) == [bytes([r]) for r in range(size)]
        w, v = train(comm, layout)
    want_w, want_v = one_rank()
    assert w.tobytes() == cut(layout, want_w.reshape(MATRIX), rank, size).tobytes()
    assert v.tobytes() == want_v.tobytes()


def fails(world, timeout, error, words, act):
    comm = muonrt.Comm.mpi(world)
    comm.set_timeout(timeout)
    with pytest.raises(error, match=words):
        act(comm)
    comm.close()
    world.Barrier()  # the caller's communicator still works after the failure


def abort(comm):
    if comm.rank == 1:
        time.sleep(0.2)
        comm.abort("enough of it" + "\1" * 900)
    comm.barrier()


def late(comm):
    time.sleep(comm.rank)
    comm.barrier()


def sizes(comm):
    mine = bytearray(4 - comm.rank)  # one rank receives less than it expects, the other more
    comm.exchange([(1 - comm.rank, mine)], [(1 - comm.rank, mine.copy())])


def run_a_rank():
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    steps(world)
    fails(world, 20, muonrt.AbortedError, "enough of it", abort)
    fails(world, 0.3, muonrt.TimeoutError, "rank", late)
    fails(world, 5, muonrt.MismatchError, "message differs from the", sizes)
    for comm in (MPI.COMM_NULL, "world"):
        with pytest.raises(muonrt.InvalidArgumentError, match="mpi4py"):
            muonrt.Comm.mpi(comm)
    sys.stdout.write(f"OK {world.Get_rank()}\n")


def test_ranks_of_mpirun():
    # With `-m mpi4py`, an exception on one rank ends the job.
    done = mpirun("2", "-m", "mpi4py", __file__)
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(line for line in done.stdout.splitlines() if line) == ["OK 0", "OK 1"]


def test_a_low_thread_level_is_rejected():
    done = mpirun("1", "-c", """import mpi4py
mpi4py.rc.thread_level = "funneled"
from mpi4py import MPI
import muonrt
try:
    muonrt.Comm.mpi(MPI.COMM_WORLD)
except muonrt.InvalidStateError as error:
    print(error)
else:
    print("an MPI that gives more", MPI.Query_thread() > MPI.THREAD_FUNNELED)""")
    assert "MPI_THREAD_SERIALIZED" in done.stdout or "more True" in done.stdout, done.stderr


if __name__ == "__main__":
    run_a_rank()
