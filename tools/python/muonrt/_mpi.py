"""Comm.mpi: the exchanges of a communicator over mpi4py, on whatever MPI that has loaded."""

import json
import threading
import time

import numpy as np

import muonrt
from muonrt._errors import of_status

_DATA, _LETTER = 0, 1  # tags on the duplicate
_PIECE = 1 << 30  # bytes of one message; MPI counts in an int
_LETTER_BYTES = 4096
# What MPI may still read or write after an exchange that failed.
_left_to_mpi: list = []


def comm_of(comm, timeout: float) -> muonrt.Comm:
    """A muonrt.Comm over the ranks of an mpi4py communicator. Collective."""
    from mpi4py import MPI

    if not isinstance(comm, MPI.Intracomm) or comm == MPI.COMM_NULL:
        raise muonrt.InvalidArgumentError(
            f"comm is {type(comm).__name__} {'(MPI_COMM_NULL)' if comm == MPI.COMM_NULL else ''}; "
            "pass an intra-communicator of mpi4py")
    if not MPI.Is_initialized() or MPI.Is_finalized():
        raise muonrt.InvalidStateError("MPI is not initialized, or finalized; create the "
                                       "communicator between MPI.Init and MPI.Finalize")
    if MPI.Query_thread() < MPI.THREAD_SERIALIZED:
        raise muonrt.InvalidStateError(
            f"MPI's thread level is {MPI.Query_thread()}, below MPI_THREAD_SERIALIZED "
            f"({MPI.THREAD_SERIALIZED}); a step calls it on a thread of its own: leave "
            "mpi4py.rc.thread_level at its default, 'multiple'")
    channel = _Channel(MPI, comm, timeout)
    return muonrt.Comm.functions(channel.rank, channel.size, channel.exchange, channel.allgather,
                                 name="mpi4py", abort=channel.abort, close=channel.close)


class _Channel:
    """One call at a time, but for `abort`. MPI works on memory of this object's, never muonrt's:
    what is pending when a call fails cannot be called back."""

    def __init__(self, MPI, comm, timeout: float):
        self._MPI, self.rank, self.size = MPI, comm.Get_rank(), comm.Get_size()
        self._lock = threading.Lock()  # around every call of MPI
        self._failed = False
        self._letters: list = []  # sends of what `abort` was told, once
        self._comm = None
        duplicate, request = comm.Idup()
        self._wait([request], timeout, "the duplicate of the communicator", self._others())
        duplicate.Set_errhandler(MPI.ERRORS_RETURN)
        self._comm = duplicate

    def exchange(self, sends, receives, timeout: float) -> None:
        requests, peers, memory = [], [], []
        self._look_well()
        try:
            with self._lock:
                for start, messages in ((self._comm.Irecv, receives), (self._comm.Isend, sends)):
                    for peer, view in messages:
                        mine = np.empty(len(view), np.uint8) if messages is receives else \
                            np.frombuffer(view, np.uint8).copy()
                        memory.append(mine)
                        for begin in range(0, len(mine), _PIECE):
                            piece = mine[begin:begin + _PIECE]
                            requests.append(start([piece, self._MPI.BYTE], peer, _DATA))
                            peers.append((peer, len(piece) if messages is receives else None))
        except BaseException:
            self._leave(requests, memory)
            raise
        self._wait(requests, timeout, "exchange", peers, memory)
        for (_, view), mine in zip(receives, memory):
            view[:] = mine.data

    def allgather(self, mine, everyone, timeout: float) -> None:
        self._look_well()
        sent = np.frombuffer(mine, np.uint8).copy()
        gathered = np.empty(len(everyone), np.uint8)
        with self._lock:
            request = self._comm.Iallgather([sent, self._MPI.BYTE], [gathered, self._MPI.BYTE])
        self._wait([request], timeout, "allgather", self._others(), [sent, gathered])
        everyone[:] = gathered.data

    def _others(self) -> list:
        return [(peer, None) for peer in range(self.size) if peer != self.rank]

    def _wait(self, requests: list, timeout: float, what: str, peers: list, memory=()) -> None:
        """Until all requests are done; raises at the deadline, and what a peer has told."""
        deadline, tries = time.monotonic() + timeout, 0
        statuses = [self._MPI.Status() for _ in requests]
        try:
            while True:
                with self._lock:
                    done = self._MPI.Request.Testall(requests, statuses)
                if done:
                    break
                self._look()
                if time.monotonic() > deadline:
                    raise muonrt.TimeoutError(
                        f"{what} is not complete after {timeout:g} s between rank {self.rank} and "
                        f"ranks {sorted({peer for peer, _ in peers})}; see what those do, or set a longer timeout")
                tries += 1
                time.sleep(0 if tries < 200 else 1e-4 if tries < 2000 else 1e-3)
            if what == "exchange":
                self._check_sizes(statuses, peers)
        except self._MPI.Exception as error:
            self._leave(requests, memory)
            self._check_sizes(statuses, peers)
            raise muonrt.CommError(f"{what} of rank {self.rank}: {error}") from None
        except BaseException:
            self._leave(requests, memory)
            raise

    def _check_sizes(self, statuses: list, peers: list) -> None:
        for status, (peer, expected) in zip(statuses, peers):
            code = status.Get_error()
            longer = code != self._MPI.SUCCESS and \
                self._MPI.Get_error_class(code) == self._MPI.ERR_TRUNCATE
            if expected is not None and (longer or code == self._MPI.SUCCESS
                                         and status.Get_count(self._MPI.BYTE) != expected):
                raise muonrt.MismatchError(
                    f"rank {peer} sends another size than the {expected} bytes that rank "
                    f"{self.rank} expects; both must derive the sizes from the same plan")

    def _leave(self, requests: list, memory) -> None:
        self._failed = True
        _left_to_mpi.append((requests, memory))

    def _look_well(self) -> None:
        """Before an operation: who comes late finds a letter before the messages that came with it.
        Open MPI searches among what it has read before, and then reads about 32 more."""
        for _ in range(4 + self.size // 8):
            self._look()

    def _look(self) -> None:
        """Raises what a peer, or another thread of this rank, has told."""
        if self._comm is None:
            return
        with self._lock:
            message = self._comm.Improbe(self._MPI.ANY_SOURCE, _LETTER)
            if message is None:
                return
            letter = bytearray(_LETTER_BYTES)
            message.Recv([letter, self._MPI.BYTE])
        self._failed = True
        status, text = json.loads(letter.rstrip(b"\0"))
        raise of_status(status, text)

    def abort(self, text: str, status: int) -> None:
        """To every rank, this one too: its call may be waiting on another thread."""
        self._failed = True
        # JSON needs at most six bytes for a character.
        letter = json.dumps([status, text[:_LETTER_BYTES // 8]], ensure_ascii=False).encode()
        letter = letter.ljust(_LETTER_BYTES, b"\0")
        with self._lock:
            if not self._letters and not self._MPI.Is_finalized():
                self._letters = [self._comm.Isend([letter, self._MPI.BYTE], peer, _LETTER)
                                 for peer in range(self.size)]

    def close(self) -> None:
        """A communicator that has failed stays: to free it is collective, and a peer may be gone."""
        with self._lock:
            if self._failed:
                _left_to_mpi.append(self)
            elif not self._MPI.Is_finalized():
                self._comm.Free()
