"""Implements Comm.mpi, a communicator over mpi4py and thus over the MPI library that mpi4py has
loaded."""

import json
import threading
import time

import numpy as np

import muonrt
from muonrt._errors import of_status

_DATA, _ERROR = 0, 1  # tags of messages on the duplicated communicator
_FRAGMENT_BYTES = 1 << 30  # maximum size of one MPI message, because MPI's counts are ints
_ERROR_BYTES = 4096
# Requests and buffers that MPI may still use after an operation has failed.
_left_to_mpi: list = []


def comm_of(comm, timeout: float) -> muonrt.Comm:
    """Creates a muonrt.Comm over the ranks of an mpi4py communicator. Collective."""
    from mpi4py import MPI

    if not isinstance(comm, MPI.Intracomm) or comm == MPI.COMM_NULL:
        raise muonrt.InvalidArgumentError(
            f"comm is {type(comm).__name__} {'(MPI_COMM_NULL)' if comm == MPI.COMM_NULL else ''}; "
            "pass an intracommunicator of mpi4py")
    if not MPI.Is_initialized() or MPI.Is_finalized():
        raise muonrt.InvalidStateError("MPI is not initialized, or it is finalized; create the "
                                       "communicator between MPI.Init() and MPI.Finalize()")
    if MPI.Query_thread() < MPI.THREAD_SERIALIZED:
        raise muonrt.InvalidStateError(
            f"MPI's thread level is {MPI.Query_thread()}, below MPI_THREAD_SERIALIZED "
            f"({MPI.THREAD_SERIALIZED}), but steps call MPI from a thread of muonrt; leave "
            "mpi4py.rc.thread_level at its default, 'multiple'")
    channel = _Channel(MPI, comm, timeout)
    return muonrt.Comm.functions(channel.rank, channel.size, channel.exchange, channel.allgather,
                                 name="mpi4py", abort=channel.abort, close=channel.close)


class _Channel:
    """Implements the functions of the communicator. One thread calls all of them except `abort`.

    MPI sends from and receives into copies of muonrt's buffers. After an error, pending operations
    cannot be cancelled, and MPI may still access these copies.
    """

    def __init__(self, MPI, comm, timeout: float):
        self._MPI, self.rank, self.size = MPI, comm.Get_rank(), comm.Get_size()
        self._lock = threading.Lock()  # held during every MPI call
        self._failed = False
        self._error_sends: list = []  # the requests that `abort` has created
        self._comm = None
        duplicate, request = comm.Idup()
        self._wait([request], timeout, "the duplicate of the communicator", self._others())
        duplicate.Set_errhandler(MPI.ERRORS_RETURN)
        self._comm = duplicate

    def exchange(self, sends, receives, timeout: float) -> None:
        requests, peers, memory = [], [], []
        self._check_for_errors_before_operation()
        try:
            with self._lock:
                for start, messages in ((self._comm.Irecv, receives), (self._comm.Isend, sends)):
                    for peer, view in messages:
                        mine = np.empty(len(view), np.uint8) if messages is receives else \
                            np.frombuffer(view, np.uint8).copy()
                        memory.append(mine)
                        for begin in range(0, len(mine), _FRAGMENT_BYTES):
                            fragment = mine[begin:begin + _FRAGMENT_BYTES]
                            requests.append(start([fragment, self._MPI.BYTE], peer, _DATA))
                            peers.append((peer, len(fragment) if messages is receives else None))
        except BaseException:
            self._leave(requests, memory)
            raise
        self._wait(requests, timeout, "exchange", peers, memory)
        for (_, view), mine in zip(receives, memory):
            view[:] = mine.data

    def allgather(self, mine, everyone, timeout: float) -> None:
        self._check_for_errors_before_operation()
        sent = np.frombuffer(mine, np.uint8).copy()
        gathered = np.empty(len(everyone), np.uint8)
        with self._lock:
            request = self._comm.Iallgather([sent, self._MPI.BYTE], [gathered, self._MPI.BYTE])
        self._wait([request], timeout, "allgather", self._others(), [sent, gathered])
        everyone[:] = gathered.data

    def _others(self) -> list:
        return [(peer, None) for peer in range(self.size) if peer != self.rank]

    def _wait(self, requests: list, timeout: float, what: str, peers: list, memory=()) -> None:
        """Waits until all requests are complete. Raises TimeoutError after the timeout. If a peer
        sends an error, raises that error."""
        deadline, tries = time.monotonic() + timeout, 0
        statuses = [self._MPI.Status() for _ in requests]
        try:
            while True:
                with self._lock:
                    done = self._MPI.Request.Testall(requests, statuses)
                if done:
                    break
                self._raise_published_error()
                if time.monotonic() > deadline:
                    raise muonrt.TimeoutError(
                        f"{what} between rank {self.rank} and ranks {sorted({peer for peer, _ in peers})} "
                        f"did not complete within {timeout:g} s; check whether these ranks are still "
                        "running, or raise the timeout")
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
                    f"the size of rank {peer}'s message differs from the {expected} bytes that rank "
                    f"{self.rank} expects; pass the same size on both ranks")

    def _leave(self, requests: list, memory) -> None:
        self._failed = True
        _left_to_mpi.append((requests, memory))

    def _check_for_errors_before_operation(self) -> None:
        """Raises an error that has arrived, even if other messages arrived before it. Each probe of
        Open MPI reads only about 32 more messages from the network, so several probes are
        needed."""
        for _ in range(4 + self.size // 8):
            self._raise_published_error()

    def _raise_published_error(self) -> None:
        """Raises an error that was sent by `abort` of a peer, or by `abort` in another thread of
        this rank."""
        if self._comm is None:
            return
        with self._lock:
            message = self._comm.Improbe(self._MPI.ANY_SOURCE, _ERROR)
            if message is None:
                return
            received = bytearray(_ERROR_BYTES)
            message.Recv([received, self._MPI.BYTE])
        self._failed = True
        status, text = json.loads(received.rstrip(b"\0"))
        raise of_status(status, text)

    def abort(self, text: str, status: int) -> None:
        """Sends an error to every rank. This includes this rank, because one of its other threads
        may be waiting in a call."""
        self._failed = True
        # JSON needs at most six bytes for each character, so the message fits.
        message = json.dumps([status, text[:_ERROR_BYTES // 8]], ensure_ascii=False).encode()
        message = message.ljust(_ERROR_BYTES, b"\0")
        with self._lock:
            if not self._error_sends and not self._MPI.Is_finalized():
                self._error_sends = [self._comm.Isend([message, self._MPI.BYTE], peer, _ERROR)
                                     for peer in range(self.size)]

    def close(self) -> None:
        """Frees the communicator. Does not free a failed communicator, because freeing is
        collective, and a peer may have exited."""
        with self._lock:
            if self._failed:
                _left_to_mpi.append(self)
            elif not self._MPI.Is_finalized():
                self._comm.Free()
