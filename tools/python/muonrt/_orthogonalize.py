"""Implements orthogonalize() and symmetric_product() on arrays, without an optimizer."""

import collections
import os
import sys
import threading
from typing import Any

from . import _core, _errors

_CACHED = 16  # number of orthogonalizers that a thread caches, by settings and device

_of_thread = threading.local()


def _core_of(x: Any, settings: dict) -> _core.Orthogonalizer:
    kind, index = x.__dlpack_device__()
    cuda = int(kind) in (2, 13)
    # The key includes the type, because True equals 1 but is not a valid number.
    items = tuple(sorted((k, type(v).__name__, v if isinstance(v, (str, int, float)) else tuple(v))
                         for k, v in settings.items()))
    key = (os.getpid(), cuda, int(index) if cuda else 0, items)  # not shared with forked children
    cache = _of_thread.__dict__.setdefault("cores", collections.OrderedDict())
    if key not in cache:
        cache[key] = _core.Orthogonalizer(cuda, key[2], **settings)
        if len(cache) > _CACHED:
            cache.popitem(last=False)
    cache.move_to_end(key)
    return cache[key]


def _with_list(settings: dict) -> dict:
    """Returns the settings, with a list of coefficients converted to the setting `custom`."""
    if isinstance(settings.get("coefficients", ""), str):
        return settings
    triples = [tuple(float(c) for c in triple) for triple in settings["coefficients"]]
    if any(len(triple) != 3 for triple in triples) or "custom" in settings:
        raise _errors.InvalidArgumentError(
            f"coefficients is {triples}, but must be a word, or a list of triples (a, b, c) without "
            "custom; pass one of these")
    return {"steps": len(triples), **settings, "coefficients": "custom",
            "custom": [c for triple in triples for c in triple]}


def _is_torch(x: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def _checked(name: str, x: Any) -> Any:
    if not hasattr(x, "__dlpack_device__"):
        raise _errors.InvalidArgumentError(
            f"{name} has type {type(x).__name__}, which does not support DLPack; pass an array of "
            "NumPy, PyTorch or another framework")
    if hasattr(x, "full_tensor"):
        raise _errors.InvalidArgumentError(
            f"{name} is a DTensor, of which this rank has a shard; pass whole matrices, for "
            f"example {name}.full_tensor()")
    if _is_torch(x):
        if x.requires_grad and sys.modules["torch"].is_grad_enabled():
            raise _errors.InvalidArgumentError(
                f"{name} requires grad, but autograd does not record this function; call it under "
                f"torch.no_grad(), or pass {name}.detach()")
        return x.detach()
    return x


def _readable(name: str, x: Any) -> Any:
    """Returns x, or a contiguous copy if neither rows nor columns are contiguous."""
    x = _checked(name, x)
    if len(x.shape) < 2:
        return x
    if _is_torch(x):
        return x if x.numel() == 0 or 1 in x.stride()[-2:] else x.contiguous()
    if "numpy" in sys.modules and isinstance(x, sys.modules["numpy"].ndarray) and x.size > 0:
        if x.itemsize not in x.strides[-2:] or min(x.strides) < 0:
            return sys.modules["numpy"].ascontiguousarray(x)
    return x


def _empty(x: Any, shape: tuple) -> Any:
    if _is_torch(x):
        return x.new_empty(shape)
    if hasattr(x, "__array_namespace__"):
        return x.__array_namespace__().empty(shape, dtype=x.dtype)
    if type(x).__module__.split(".")[0] == "numpy":
        return sys.modules["numpy"].empty(shape, x.dtype)
    raise _errors.InvalidArgumentError(
        f"an array of type {type(x).__name__} cannot be created here; pass out=")


def _stream(x: Any, stream: int | None) -> int:
    if stream is None and _is_torch(x) and x.is_cuda:
        return sys.modules["torch"].cuda.current_stream(x.device).cuda_stream
    return stream or 0


def orthogonalize(x: Any, *, out: Any = None, stream: int | None = None, **settings: Any) -> Any:
    """Orthogonalizes a matrix, or each matrix of a batch, with Newton-Schulz.

    If the ``transport_dtype`` of an optimizer step is the dtype of ``x``, and all other settings
    are equal, the result is bitwise identical to the step's unscaled update. See muonrt_orthogonalize() in
    ``muonrt/orthogonalize.h``. Autograd does not record the call, so the function rejects a tensor
    that requires grad unless gradients are disabled.

    For recently used settings, each calling thread caches worker threads and a workspace.

    :param x: an array in float32, bfloat16 or float16 with two or more dimensions; the last two are
        rows and columns. If it contains a non-finite element on the host, the call raises
        NonFiniteError and writes nothing; on CUDA the result for this matrix is NaN.
    :param out: an array with the shape of ``x`` and any of these dtypes, for example ``x`` itself.
        Default: a new array with the dtype of ``x``.
    :param stream: the cudaStream_t as an integer. Default: torch's current stream for a tensor,
        otherwise CUDA's default stream. The host does not wait for the work.
    :param settings: ``coefficients="polar_express"``, or a list of triples, ``steps=5``, ``lower_bound``, ``cushion``,
        ``safety``, ``safety_mode``, ``normalize``, ``normalize_eps``, ``custom``, ``form="auto"``,
        ``gram_restarts``, ``iteration_dtype``, ``row_scaling`` and ``renormalize`` as for
        muonrt.Group; ``threads=0``, ``symmetric`` and ``portable_gemm`` as for muonrt.Optimizer.
    :return: ``out``.
    """
    given = _readable("x", x)
    result = _empty(given, tuple(x.shape)) if out is None else out
    core = _core_of(given, _with_list(settings))
    core.orthogonalize(_checked("out", result), given, _stream(given, stream))
    return result


def symmetric_product(a: Any, d: Any = None, *, alpha: float = 1.0, beta: float = 1.0,
                      out: Any = None, stream: int | None = None, threads: int = 0) -> Any:
    """Returns alpha a a^T + beta d for a matrix, or for each matrix of a batch.

    The two symmetric products of a Newton-Schulz step, ``r = symmetric_product(x)`` and ``z =
    symmetric_product(r, r, alpha=c, beta=b)``, are bitwise identical to those inside a step. Only
    half of the product is computed, because it is symmetric. See muonrt_symmetric_product() in
    ``muonrt/orthogonalize.h``. Accepts the same arrays and tensors as orthogonalize().

    :param a: m x k.
    :param d: m x m, symmetric, with the dtype of ``a``; None means 0.
    :param out: an m x m array with the dtype of ``a``, for example ``d``. Default: a new array.
    :return: ``out``.
    """
    given = _readable("a", a)
    added = None if d is None else _readable("d", d)
    shape = tuple(a.shape)
    result = _empty(given, (*shape[:-1], *shape[-2:-1])) if out is None else out
    core = _core_of(given, {"threads": threads})
    core.symmetric_product(_checked("out", result), alpha, given, 0.0 if d is None else beta, added,
                           _stream(given, stream))
    return result
