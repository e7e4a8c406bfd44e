"""An exception class for every status of muonrt/base.h; the text is the library's."""

__all__ = [
    "AbortedError", "CallbackError", "CommError", "CorruptError", "DeviceError", "Error",
    "InternalError", "InvalidArgumentError", "InvalidStateError", "IoError", "MismatchError",
    "NotSupportedError", "OutOfMemoryError", "TimeoutError", "TornError", "UndecidedError",
]


class Error(RuntimeError):
    """Base of all; `status` is the number of muonrt/base.h."""

    status = 0


class InvalidArgumentError(Error, ValueError):
    """A value is wrong; the text names the parameter, the field and the values."""

    status = 10


class InvalidStateError(Error):
    """The call does not fit what the object is now (closed, failed, in use by another thread)."""

    status = 11


class NotSupportedError(Error):
    """Right, but not in this build or not in this combination."""

    status = 12


class CallbackError(Error):
    """A function of the caller's returned an error."""

    status = 13


class MismatchError(Error):
    """Ranks disagree; the text names them and what differs."""

    status = 20


class OutOfMemoryError(Error, MemoryError):
    """No memory on some rank; nothing has changed."""

    status = 30


class DeviceError(Error):
    """A device failed."""

    status = 40


class CommError(Error, ConnectionError):
    """A rank is lost, or the ranks could not meet."""

    status = 50


class TimeoutError(Error, TimeoutError):  # noqa: A001 (muonrt.TimeoutError is Python's, too)
    """A rank did not come in time; the text names who is missing."""

    status = 51


class AbortedError(Error):
    """Some rank called abort, or Ctrl-C ended its call."""

    status = 52


class UndecidedError(Error):
    """A peer failed inside the vote: not committed here, perhaps there; see Optimizer.recover."""

    status = 60


class TornError(Error):
    """An eager step failed after its vote: parameters are partly updated."""

    status = 61


class IoError(Error, OSError):
    """A file could not be read or written."""

    status = 70


class CorruptError(Error):
    """A file is not what it should be."""

    status = 71


class InternalError(Error):
    """A fault of muonrt's own."""

    status = 90


_BY_STATUS = {c.status: c for c in Error.__subclasses__()}


def of_status(status: int, text: str) -> Error:
    """The exception of a status, with the library's text."""
    error = _BY_STATUS.get(status, Error)(text)
    error.status = status
    return error
