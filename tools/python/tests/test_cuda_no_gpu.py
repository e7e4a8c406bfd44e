"""Tests CUDA arrays without a GPU: rejected arguments, the stream of a step, and the communicator
of the ranks."""

import contextlib
import ctypes
import types

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import muonrt  # noqa: E402
import muonrt.torch  # noqa: E402
from test_cuda import RUNS, Model, optimizer  # noqa: E402
from torch_models import train  # noqa: E402


class Managed(ctypes.Structure):
    """The struct DLManagedTensor of DLPack."""

    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32),
                ("device_id", ctypes.c_int32), ("ndim", ctypes.c_int32),
                ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                ("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p),
                ("byte_offset", ctypes.c_uint64), ("context", ctypes.c_void_p),
                ("deleter", ctypes.c_void_p)]


capsule = ctypes.pythonapi.PyCapsule_New
capsule.restype = ctypes.py_object
capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
kept = []  # keeps the memory that capsules point to


class On:
    """A float32 array whose DLPack export claims that it is on `cuda:index`."""

    def __init__(self, index, *shape, device_type=2):
        self.array, self.device = np.ones(shape, np.float32), (device_type, index)

    def __dlpack__(self, **asked):
        shape = (ctypes.c_int64 * self.array.ndim)(*self.array.shape)
        managed = Managed(self.array.ctypes.data, *self.device, self.array.ndim, 2, 32, 1,
                          ctypes.addressof(shape), None, 0, None, None)
        kept.append((self.array, shape, managed))
        return capsule(ctypes.addressof(managed), b"dltensor", None)

    def __dlpack_device__(self):
        return self.device


HOST = np.ones(3, np.float32)


def adamw(*arrays, **settings):
    return muonrt.Optimizer([muonrt.Param(name, *pair) for name, pair in zip("ab", arrays)],
                            [muonrt.Group("adamw")], **settings)


@pytest.mark.skipif(RUNS, reason="there is a CUDA device")
@pytest.mark.parametrize("make", [
    lambda: adamw([On(0, 3), On(0, 3)]), lambda: adamw([On(0, 3)], comm=muonrt.Comm.self()),
    lambda: muonrt.Comm.nccl(muonrt.Comm.self()), lambda: muonrt.Comm.staged(muonrt.Comm.self()),
    # Without device_index, the arrays determine the device.
    lambda: adamw([On(1, 3)], device="cuda")])
def test_without_cuda_it_is_not_supported(make):
    with pytest.raises(muonrt.NotSupportedError, match="no CUDA device"):
        make()


@pytest.mark.parametrize("make, words", [
    (lambda: adamw([On(0, 3)], [HOST]), "'b': data is on the host, but param 'a': data is on cuda:0"),
    (lambda: adamw([On(0, 3)], [On(1, 3)]), "'b': data is on cuda:1, but param 'a': data is on cuda:0"),
    (lambda: adamw([On(0, 3), HOST]), "'a': grad is on the host.*on cuda:0"),
    (lambda: adamw([On(0, 3)], device="host"), "on cuda:0, but the optimizer is on the host"),
    (lambda: adamw([On(0, 3)], device_index=2), "on cuda:0, but the optimizer is on cuda:2"),
    (lambda: adamw([HOST]).set_grad("a", On(0, 3)), "'a': grad is on cuda:0.*on the host"),
    (lambda: adamw([HOST]).step(0.1, [0], stream=8), "stream is set, but the optimizer is on the host"),
    (lambda: adamw([HOST]).step(0.1, found_inf=np.zeros(2, np.float32)),
     r"found_inf has shape \(2,\)"),
    (lambda: adamw([HOST]).step(0.1, grad_scale_inv="x"), "grad_scale_inv is 'x'")])
def test_a_rejected_argument_is_named(make, words):
    with pytest.raises(muonrt.InvalidArgumentError, match=words):
        make()


def test_a_device_of_another_kind_is_rejected():
    with pytest.raises(muonrt.NotSupportedError, match="'a': data is on a device .* type 7"):
        muonrt.Param("a", On(0, 3, device_type=7))


class NoTruth:
    def __bool__(self):
        raise ValueError("no truth value")


def test_scalars_may_be_arrays():
    one = adamw([HOST.copy(), 4 * HOST])
    assert one.step(0.1, found_inf=np.ones(1, np.float32)).skipped
    with pytest.raises(ValueError, match="truth value"):
        one.step(0.1, found_inf=NoTruth())
    assert not one.step(0.1, found_inf=np.zeros((), np.float32),
                        grad_scale_inv=np.full(1, 0.25, np.float32)).skipped
    assert one.state("a", "momentum")[0] == pytest.approx(0.1)  # 4 / 4, times 1 - beta1


class Recorder:
    """A replacement for the core that records the arguments of its steps."""

    def __init__(self, core):
        self.core, self.steps_args = core, []

    def __getattr__(self, name):
        return getattr(self.core, name)

    def step(self, rates, missing, **args):
        self.steps_args.append(args)
        return self.core.step(rates, missing)


def test_a_step_receives_the_current_stream(monkeypatch):
    m = Model(device="cpu")
    one = optimizer(m)
    one._core = recorder = Recorder(one._core)
    train(m, [0], one)
    one._device = torch.device("cuda", 1)
    monkeypatch.setattr(one, "_follow", lambda: None)  # the parameters are in host memory
    streams = {torch.device("cuda", 1): types.SimpleNamespace(cuda_stream=77)}
    entered = []
    monkeypatch.setattr(torch.cuda, "current_stream", streams.__getitem__)
    monkeypatch.setattr(torch.cuda, "device",
                        lambda d: entered.append(d) or contextlib.nullcontext())
    one.step()
    assert [args["stream"] for args in recorder.steps_args] == [None, 77]
    # The device is made current once to bind the arguments, and once to run the step.
    assert entered == [torch.device("cuda", 1)] * 2


def test_the_communicator_of_the_ranks(monkeypatch):
    from muonrt import _torch_ranks as ranks

    device, host = torch.device("cuda", 1), object()
    monkeypatch.setattr(ranks, "_connect", lambda group, ranks, machines, interface: host)
    monkeypatch.setattr(ranks.dist, "is_initialized", lambda: True)
    monkeypatch.setattr(ranks.dist, "get_process_group_ranks", lambda group: [0, 1])
    monkeypatch.setattr(ranks, "_gpu_of", lambda device: "a")
    made = types.SimpleNamespace(nccl=lambda *a: ("nccl", *a), staged=lambda *a: ("staged", *a))
    monkeypatch.setattr(ranks.muonrt, "Comm", made)

    def found(*places):
        monkeypatch.setattr(ranks.dist, "all_gather_object",
                            lambda out, mine, group: out.__setitem__(slice(None), places))
        return ranks.comm_of(device, "group")[0]

    assert found(("x", "a"), ("x", "b")) == ("nccl", host, 1)
    assert found(("x", "a"), ("y", "a")) == ("nccl", host, 1)
    assert found(("x", "a"), ("x", "a")) == ("staged", host, 1)
    assert found(("x", None), ("x", None)) is host
    with pytest.raises(muonrt.MismatchError, match=r"\['CUDA', 'the host'\]"):
        found(("x", "a"), ("x", None))
