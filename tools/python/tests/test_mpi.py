"""Comm.mpi over ranks of mpirun, where there are mpirun and mpi4py."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mpi4py")
if shutil.which("mpirun") is None:
    pytest.skip("no mpirun", allow_module_level=True)

# Open MPI 4 and 5: as root, and more ranks than cores. Others do not read them.
ENV = os.environ | {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                    "OMPI_MCA_rmaps_base_oversubscribe": "1",
                    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}


def test_ranks_of_mpirun():
    script = Path(__file__).with_name("mpi_ranks.py")
    # By its module, mpi4py ends the job where one rank raises.
    done = subprocess.run(["mpirun", "-n", "2", sys.executable, "-m", "mpi4py", str(script)],
                          text=True, capture_output=True, timeout=120, env=ENV)
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(line for line in done.stdout.splitlines() if line) == ["OK 0", "OK 1"]


def test_too_low_a_thread_level_is_refused():
    program = """import mpi4py
mpi4py.rc.thread_level = "funneled"
from mpi4py import MPI
import muonrt
try:
    muonrt.Comm.mpi(MPI.COMM_WORLD)
except muonrt.InvalidStateError as error:
    print(error)
else:
    print("an MPI that gives more", MPI.Query_thread() > MPI.THREAD_FUNNELED)"""
    done = subprocess.run(["mpirun", "-n", "1", sys.executable, "-c", program], text=True,
                          capture_output=True, timeout=120, env=ENV)
    assert "MPI_THREAD_SERIALIZED" in done.stdout or "more True" in done.stdout, done.stdout + done.stderr
