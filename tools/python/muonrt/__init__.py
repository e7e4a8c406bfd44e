"""muonrt: sharded Muon and AdamW on the arrays that are there. See README.md."""

import atexit as _atexit

from . import _core, _errors
from ._core import (
    Comm,
    Group,
    Layout,
    Mesh,
    Optimizer,
    Param,
    Part,
    QkClip,
    Report,
    StateExtent,
    ThreadGroup,
    route,
)
from ._errors import *  # noqa: F403

__all__ = [
    "Comm", "Group", "Layout", "Mesh", "Optimizer", "Param", "Part", "QkClip", "Report",
    "StateExtent", "ThreadGroup", "build_info", "route", "version",
]
__all__ += _errors.__all__

# Rank 0 says goodbye before its process ends, or the others may miss what they have yet to hear.
_atexit.register(_core._close_all)


def version() -> str:
    """Version of the library that runs, as "MAJOR.MINOR.PATCH"."""
    number = _core.version()
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"


def build_info() -> dict:
    """Versions, compiler, instruction set and transports of the library."""
    import json

    return json.loads(_core.build_info())
