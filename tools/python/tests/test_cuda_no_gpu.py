"""CUDA arrays without a GPU: what is refused, which stream a step and which communicator ranks get."""

import contextlib
import types

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import muonrt  # noqa: E402
import muonrt.torch  # noqa: E402
from fake_cuda import OnCuda  # noqa: E402
from test_cuda import RUNS, Model, inject, optimizer  # noqa: E402


class NoTruth:
    def __bool__(self):
        raise ValueError("no truth value")


def on(index, *shape):
    return OnCuda(np.ones(shape, np.float32), index)


@pytest.mark.skipif(RUNS, reason="a CUDA device is there")
def test_without_cuda_the_library_says_so():
    params = [muonrt.Param("w", on(0, 4, 3), on(0, 4, 3))]
    for comm in (None, muonrt.Comm.self()):
        with pytest.raises(muonrt.NotSupportedError, match="no CUDA device"):
            muonrt.Optimizer(params, [muonrt.Group("muon")], comm)
    for make in (muonrt.Comm.nccl, muonrt.Comm.staged):
        with pytest.raises(muonrt.NotSupportedError, match="no CUDA device"):
            make(muonrt.Comm.self())
    # `device` alone takes the arrays' index.
    with pytest.raises(muonrt.NotSupportedError, match="no CUDA device"):
        muonrt.Optimizer([muonrt.Param("w", on(1, 4, 3))], [muonrt.Group("muon")], device="cuda")


def test_arrays_of_two_devices_are_refused_by_name():
    host = np.ones(3, np.float32)
    for second, words in ((host, "'b': data is on the host, but param 'a': data on cuda:0"),
                          (on(1, 3), "'b': data is on cuda:1, but param 'a': data on cuda:0")):
        params = [muonrt.Param("a", on(0, 3)), muonrt.Param("b", second)]
        with pytest.raises(muonrt.InvalidArgumentError, match=words):
            muonrt.Optimizer(params, [muonrt.Group("adamw")])
    with pytest.raises(muonrt.InvalidArgumentError, match="'a': grad is on the host.*on cuda:0"):
        muonrt.Optimizer([muonrt.Param("a", on(0, 3), host)], [muonrt.Group("adamw")])
    for settings, words in ((dict(device="host"), "on cuda:0, but the optimizer's .* on the host"),
                            (dict(device_index=2), "on cuda:0, but the optimizer's .* on cuda:2")):
        with pytest.raises(muonrt.InvalidArgumentError, match=words):
            muonrt.Optimizer([muonrt.Param("a", on(0, 3))], [muonrt.Group("adamw")], **settings)
    with pytest.raises(muonrt.NotSupportedError, match="'a': data is on a device .* type 7"):
        muonrt.Param("a", OnCuda(host, 0, 7))
    one = muonrt.Optimizer([muonrt.Param("a", host)], [muonrt.Group("adamw")])
    with pytest.raises(muonrt.InvalidArgumentError, match="'a': grad is on cuda:0.*on the host"):
        one.set_grad("a", on(0, 3))
    with pytest.raises(muonrt.InvalidArgumentError, match="stream is given on the host"):
        one.step(0.1, [0], stream=8)


def test_scalars_may_be_arrays():
    w, grad = np.ones(3, np.float32), np.full(3, 4.0, np.float32)
    one = muonrt.Optimizer([muonrt.Param("a", w, grad)], [muonrt.Group("adamw")])
    assert one.step(0.1, found_inf=np.ones(1, np.float32)).skipped
    with pytest.raises(ValueError, match="truth value"):
        one.step(0.1, found_inf=NoTruth())
    assert not one.step(0.1, found_inf=np.zeros((), np.float32),
                        grad_scale_inv=np.full(1, 0.25, np.float32)).skipped
    assert one.state("a", "momentum")[0] == pytest.approx(0.1)  # 4 / 4, times 1 - beta1
    with pytest.raises(muonrt.InvalidArgumentError, match=r"found_inf has shape \(2,\)"):
        one.step(0.1, found_inf=np.zeros(2, np.float32))
    with pytest.raises(muonrt.InvalidArgumentError, match="grad_scale_inv is 'x'"):
        one.step(0.1, grad_scale_inv="x")


class Recorder:
    """A core that notes how it is asked to step."""

    def __init__(self, core):
        self.core, self.asked = core, []

    def __getattr__(self, name):
        return getattr(self.core, name)

    def step(self, rates, missing, **asked):
        self.asked.append(asked)
        return self.core.step(rates, missing)


def test_a_step_is_given_the_current_stream(monkeypatch):
    m = Model(device="cpu")
    one = optimizer(m)
    one._core = recorder = Recorder(one._core)
    inject(m, 0)
    one.step()
    one._device = torch.device("cuda", 1)
    streams = {torch.device("cuda", 1): types.SimpleNamespace(cuda_stream=77)}
    entered = []
    monkeypatch.setattr(torch.cuda, "current_stream", streams.__getitem__)
    monkeypatch.setattr(torch.cuda, "device",
                        lambda d: entered.append(d) or contextlib.nullcontext())
    one.step()
    assert [asked["stream"] for asked in recorder.asked] == [None, 77]
    assert entered == [torch.device("cuda", 1)]


def test_which_communicator_ranks_get(monkeypatch):
    from muonrt import _torch_ranks as ranks

    device, host = torch.device("cuda", 1), object()
    monkeypatch.setattr(ranks, "_meet", lambda group, ranks, hosts: host)
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
