"""Sharded Muon and AdamW on NumPy arrays and PyTorch tensors. See README.md."""

import atexit as _atexit

try:
    from . import _core
# The loader's message names only a file, so this message also names the package and a remedy.
except ImportError as _error:
    raise ImportError(
        f"muonrt cannot load its library: {_error}; install the missing library (with Debian libdnnl2 or "
        "libdnnl3, and libgomp1), or install muonrt again on this machine", name=_error.name,
        path=_error.path) from None
from . import _errors
from ._core import (
    AssignInfo,
    Checkpoint,
    CheckpointTensor,
    Comm,
    Group,
    Layout,
    Mesh,
    Optimizer,
    Param,
    Part,
    Plan,
    QkClip,
    StateShard,
    StepReport,
    ThreadGroup,
    parse_qk_layer,
    route,
)
from ._errors import *  # noqa: F403
from ._log import set_log_level
from ._orthogonalize import orthogonalize, symmetric_product
from ._plan import plan

__all__ = [
    "AssignInfo", "Checkpoint", "CheckpointTensor", "Comm", "Group", "Layout", "Mesh", "Optimizer",
    "Param", "Part", "Plan", "QkClip", "StateShard", "StepReport", "ThreadGroup", "build_info",
    "orthogonalize", "parse_qk_layer", "plan", "route", "set_log_level", "symmetric_product",
    "version",
]
__all__ += _errors.__all__

# Close all communicators before the process ends. Otherwise the other ranks may not receive the
# last messages of rank 0.
_atexit.register(_core._close_all)


def version() -> str:
    """Returns the version of the library at run time, as "MAJOR.MINOR.PATCH"."""
    number = _core.version()
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"


def __getattr__(name: str) -> str:
    if name == "__version__":
        return version()
    raise AttributeError(f"module 'muonrt' has no attribute '{name}'")


def build_info() -> dict:
    """Describes the library: versions, compiler, instruction set, devices and transports."""
    import json

    return json.loads(_core.build_info())
