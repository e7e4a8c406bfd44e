"""Exception classes, one for each error status of muonrt/base.h."""

__all__ = [
    "AbortedError", "CallbackError", "CommError", "CorruptError", "DeviceError", "Error",
    "InternalError", "InvalidArgumentError", "InvalidStateError", "IoError", "MismatchError",
    "NonFiniteError", "NotSupportedError", "OutOfMemoryError", "TimeoutError", "TornError",
    "UndecidedError",
]


class Error(RuntimeError):
    """Base class; `status` is the number of the status in muonrt/base.h."""

    status = 0


class NonFiniteError(Error, FloatingPointError):
    """An input of orthogonalize() is not finite; the message has its index. Nothing was written."""

    status = 1


class InvalidArgumentError(Error, ValueError):
    """An argument is invalid; the message names it and its value."""

    status = 10


class InvalidStateError(Error):
    """The call is not allowed now: the object is closed, has failed, or is in use by another thread."""

    status = 11


class NotSupportedError(Error):
    """This build, this machine or this combination of options cannot do it."""

    status = 12


class CallbackError(Error):
    """A function that the caller has passed returned an error."""

    status = 13


class MismatchError(Error):
    """Arguments that must be equal differ between ranks; the message names the ranks and values."""

    status = 20


class OutOfMemoryError(Error, MemoryError):
    """A rank could not allocate memory."""

    status = 30


class DeviceError(Error):
    """A GPU or its driver reported an error."""

    status = 40


class CommError(Error, ConnectionError):
    """A communicator has failed, or a rank is no longer reachable."""

    status = 50


class TimeoutError(Error, TimeoutError):  # noqa: A001 (muonrt.TimeoutError is Python's, too)
    """An operation did not complete before its timeout; the message names the missing ranks."""

    status = 51


class AbortedError(Error):
    """A rank has called abort(), or Ctrl-C has ended its call."""

    status = 52


class UndecidedError(Error):
    """A peer failed during the vote of a step. This rank has not committed the step, but other ranks
    may have; see Optimizer.recover()."""

    status = 60


class TornError(Error):
    """An eager step failed after its vote, so the parameters are partly updated."""

    status = 61


class IoError(Error, OSError):
    """A file or folder could not be read or written."""

    status = 70


class CorruptError(Error):
    """The content of a file is damaged."""

    status = 71


class InternalError(Error):
    """A bug in muonrt; please report the message."""

    status = 90


_BY_STATUS = {c.status: c for c in Error.__subclasses__()}


def of_status(status: int, text: str) -> Error:
    """Returns the exception of a status with this message."""
    error = _BY_STATUS.get(status, Error)(text)
    error.status = status
    return error
