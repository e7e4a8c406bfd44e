"""muonrt: sharded Muon and AdamW on the arrays that are there. See README.md."""

import atexit as _atexit
import socket as _socket

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
    "StateExtent", "ThreadGroup", "build_info", "free_address", "route", "version",
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


def free_address(host: str = "127.0.0.1") -> str:
    """"host:port" with a port that is free now, for rank 0 to tell the others.

    Another program may take it before Comm.tcp does, which then raises CommError.
    """
    family = _socket.AF_INET6 if ":" in host else _socket.AF_INET
    with _socket.socket(family) as probe:
        probe.bind((host, 0))
        port = probe.getsockname()[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
