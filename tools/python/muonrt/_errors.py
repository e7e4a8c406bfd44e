"""Exception classes, one for each error status of muonrt/base.h."""

import re

__all__ = [
    "AbortedError", "CallbackError", "CommError", "CorruptError", "DeviceError", "Error",
    "InternalError", "InvalidArgumentError", "InvalidStateError", "IoError", "MismatchError",
    "NonFiniteError", "NotSupportedError", "OutOfMemoryError", "TimeoutError", "TornError",
    "UndecidedError",
]


class Error(RuntimeError):
    """The base class of muonrt's exceptions. `status` is the number of the error in
    muonrt/base.h."""

    status = 0


class NonFiniteError(Error, FloatingPointError):
    """An input of orthogonalize() has a non-finite element. The message gives its index, and the
    output is unchanged."""

    status = 1


class InvalidArgumentError(Error, ValueError):
    """An argument is invalid. The message names the argument and its value."""

    status = 10


class InvalidStateError(Error):
    """The object cannot run the call now, because it is closed, has failed, or is in use by another
    thread."""

    status = 11


class NotSupportedError(Error):
    """The build, the machine or the combination of options does not support the call."""

    status = 12


class CallbackError(Error):
    """A function that the caller has passed to muonrt returned an error."""

    status = 13


class MismatchError(Error):
    """Arguments that must be equal on all ranks differ. The message names the ranks and the
    values."""

    status = 20


class OutOfMemoryError(Error, MemoryError):
    """A rank could not allocate memory."""

    status = 30


class DeviceError(Error):
    """A GPU or its driver reported an error."""

    status = 40


class CommError(Error, ConnectionError):
    """A communicator has failed, or another rank is no longer reachable."""

    status = 50


class TimeoutError(Error, TimeoutError):  # noqa: A001 (muonrt.TimeoutError is Python's, too)
    """An operation did not complete before its timeout. The message names the missing ranks."""

    status = 51


class AbortedError(Error):
    """A rank has called abort(), or Ctrl-C has interrupted a call on a rank."""

    status = 52


class UndecidedError(Error):
    """A peer failed during the vote of a step. This rank has not committed the step, but other ranks
    may have; see Optimizer.recover()."""

    status = 60


class TornError(Error):
    """A step failed after its vote had passed, so the parameters may be partly updated."""

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

# Python names of C functions that do not follow the usual pattern SCOPE.METHOD(). The table omits
# enum values, which are lower-case strings in Python.
_OTHER_NAMES = {
    "optimizer_copy_state": "optimizer.copy_state_from()", "optimizer_set_step": "optimizer.steps = ...",
    "optimizer_get_trace": "optimizer.trace()", "comm_create_mpi": "Comm.mpi()",
    "thread_group_create": "ThreadGroup()", "set_log": "set_log_level()",
    "group_init_muon": "Group('muon')", "plan_create": "Plan()", "plan_get_rank": "plan.rank()",
    "plan_get_time": "plan.time()", "plan_describe": "plan.describe()", "placements_parse": "Layout()",
    "layout_get_runs": "layout.runs()",
    "comm_create_mpi_address": "Comm.mpi()", "step_args_init": "optimizer.step()",
    "transport_init": "Comm.functions()", "optimizer_reset_masters, _set_step and _set_update_count":
        "optimizer.reset_masters(), and set optimizer.steps and update_counts,",
}
_WORDS = {"f32": "float32", "bf16": "bfloat16", "f16": "float16"}
_OF_C = re.compile(r"muonrt_(optimizer_reset_masters, _set_step and _set_update_count|"
                   r"(?:comm|group|layout|optimizer|placements|plan|set|step|thread|transport)_[a-z_]+)(\(\))?"
                   r"|MUONRT_(?:[A-Z]+_(?:CHECK|DECAY|MODE|SCALING)|[A-Z]+)_([A-Z0-9_]+)"
                   r"|\bn_(\w+) is\b|\bgroup_lrs\b|\bgrad_multiplier\b|\bcopy_state: from\b|\bNULL\b|(?<=\bgroup \d) ''|(?<=\bgroup \d\d) ''")


def _of_python(match: re.Match) -> str:
    function, _, value, count = match.groups()
    if function:
        scope, _, method = function.partition("_")
        return _OTHER_NAMES.get(function, f"{scope}.{method}()")
    if value and match[0].startswith("MUONRT_ERROR_"):
        return value.title().replace("_", "") + "Error"
    if value:
        return f"'{_WORDS.get(value.lower(), value.lower())}'"
    if count:
        return f"len({'lr' if count == 'group_lrs' else count}) is"
    # If the match is none of these, it is an empty group name, which is removed.
    return {"group_lrs": "lr", "grad_multiplier": "grad_scale_inv", "copy_state: from": "copy_state_from: old",
            "NULL": "None"}.get(match[0], "")


def in_python(text: str) -> str:
    """Returns a message of the library with the C names of functions and values replaced by their
    Python names."""
    return _OF_C.sub(_of_python, text)


def of_status(status: int, text: str) -> Error:
    """Returns the exception for a status code and a message of the library."""
    error = _BY_STATUS.get(status, Error)(in_python(text))
    error.status = status
    return error
