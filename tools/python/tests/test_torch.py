"""Tests muonrt.torch.Muon on one rank: values compared with torch's optimizers, and use in
trainers."""

import contextlib
import copy

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch_models import drawn, inject, same_bits, train, two_layers  # noqa: E402

import muonrt  # noqa: E402
import muonrt.torch  # noqa: E402

AS_TORCH = dict(muon={"coefficients": "keller_jordan", "normalize": "max_eps",
                      "scale_rule": "original"}, transport_dtype="float32")


def muon(m, **settings):
    return muonrt.torch.Muon(m.named_parameters(), **settings)


class Float32Torch:
    """A replacement for the module torch in which bfloat16 is float32."""

    bfloat16 = torch.float32

    def __getattr__(self, name):
        return getattr(torch, name)


def torch_muon_in_float32(monkeypatch):
    """Returns torch.optim.Muon with an iteration in float32 instead of bf16."""
    from torch.optim import _muon

    monkeypatch.setattr(_muon, "torch", Float32Torch())
    monkeypatch.setattr(torch.Tensor, "bfloat16", lambda self: self.float())  # torch 2.9
    return _muon.Muon


def test_as_torch_optim_muon_and_adamw(monkeypatch):
    ours, theirs = two_layers(), two_layers()
    one = muon(ours, lr=0.02, adamw_lr=3e-3, betas=(0.9, 0.999), iteration_dtype="float32",
               **AS_TORCH)
    matrices = [p for p in theirs.parameters() if p.ndim == 2]
    rest = [p for p in theirs.parameters() if p.ndim != 2]
    pair = [torch_muon_in_float32(monkeypatch)(matrices, lr=0.02, weight_decay=0.1),
            torch.optim.AdamW(rest, lr=3e-3, weight_decay=0.01)]
    for step in range(20):
        before = [[p.detach().clone() for p in m.parameters()] for m in (ours, theirs)]
        train(ours, [step], one)
        train(theirs, [step], *pair)
        for p, q, b, c in zip(ours.parameters(), theirs.parameters(), *before):
            assert torch.allclose(p - b, q - c, atol=1e-5), step
    assert one.last_report.step == 20


@pytest.mark.parametrize("way", ["wait", "zero_grad", "closure", "phases"])
def test_deferred_steps_have_the_bits_of_steps(way, tmp_path):
    models, optimizers = [two_layers(), two_layers()], []
    for m, sync in zip(models, (True, False)):
        one = muon(m, lr=0.02, sync=sync)
        schedule = torch.optim.lr_scheduler.ExponentialLR(one, 0.5)
        optimizers.append(one)
        for step in range(4):
            def loss():
                one.zero_grad(set_to_none=False)
                out = m(drawn(step, 4, 12)).square().sum()
                out.backward()
                return out
            if way == "closure":
                one.step(loss)
            elif way == "phases" and not sync:
                loss()
                before = [p.detach().clone() for p in m.parameters()]
                one.prepare()
                assert all(torch.equal(p, q) for p, q in zip(m.parameters(), before))
                one.compute()
            else:
                loss()
                one.step()
            schedule.step()
            if not sync and way in ("wait", "phases"):
                assert one.last_report is None or one.last_report.step == step
                one.wait()
                assert one.last_report.step == step + 1
    one = optimizers[1]
    assert one.state_dict()["state"][0]["step"] == 4 and one.last_report.step == 4
    same_bits(*models)
    one.step()
    one.save(tmp_path / "run")
    optimizers[0].step()
    assert one.last_report.step == 5
    same_bits(*models)


def test_phases_in_a_wrong_order_are_rejected():
    m = two_layers()
    one = muon(m)
    train(m, [0], one)
    before = copy.deepcopy(m)
    with pytest.raises(muonrt.InvalidStateError, match="compute: no step is prepared; call prepare"):
        one.compute()
    one.prepare()
    for call in one.prepare, one.step, one.wait, one.state_dict:
        with pytest.raises(muonrt.InvalidStateError, match="a step is prepared.*call compute"):
            call()
    one.zero_grad(set_to_none=False)
    with pytest.raises(muonrt.InvalidStateError, match="compute: no step is prepared; call prepare"):
        one.compute()
    same_bits(m, before)
    train(m, [0], one)
    assert one.last_report.step == 2


def test_the_next_call_raises_the_error_of_a_deferred_step():
    m = two_layers()
    one = muon(m, sync=False)
    train(m, range(2), one)
    one.wait()
    before = copy.deepcopy(m)
    one.param_groups[0]["lr"] = -1.0
    # The error is detected before the step begins.
    with pytest.raises(muonrt.InvalidArgumentError, match="lr"):
        one.step()
    one.param_groups[0]["lr"] = 0.02
    for p in m.parameters():
        p.grad = None
    for call in one.step, one.wait:
        one.step()
        with pytest.raises(muonrt.InvalidStateError, match="has a gradient on any rank"):
            call()
    m(drawn(0, 4, 12)).mul(float("inf")).sum().backward()
    one.step()
    one.wait()
    assert one.last_report.skipped and one._core.steps == 2
    same_bits(m, before)
    one.step()
    del one  # waits for the step


def test_a_step_calls_the_closure_and_returns_its_loss():
    m = two_layers()
    one = muon(m)

    def closure():
        one.zero_grad()
        loss = m(torch.ones(4, 12)).square().mean()
        loss.backward()
        return loss

    losses = [one.step(closure).item() for _ in range(8)]
    assert losses == sorted(losses, reverse=True) and losses[-1] < losses[0]


def test_schedulers_change_the_rate_of_each_group():
    m = two_layers()
    one = muon(m, lr=0.02, adamw_lr=0.01, weight_decay=0.0, adamw_weight_decay=0.0)
    assert [g["role"] for g in one.param_groups] == ["muon", "adamw"]
    schedule = torch.optim.lr_scheduler.LambdaLR(
        one, [lambda step: 0.5**step, lambda step: 1.0 if step == 0 else 0.0])
    moved = []
    for _ in range(2):
        before = [p.detach().clone() for p in m.parameters()]
        train(m, [0], one)
        schedule.step()
        moved.append([(p - b).abs().max().item() for p, b in zip(m.parameters(), before)])
    assert moved[1][1] == 0 and moved[0][1] > 0  # AdamW's learning rate is now 0
    # The gradients are equal, and the learning rate is half.
    assert moved[1][0] == pytest.approx(moved[0][0] / 2, rel=0.01)


def test_roles_and_groups():
    m = two_layers()
    names = dict(m.named_parameters())
    one = muonrt.torch.Muon(
        [{"params": [("0.weight", names["0.weight"])], "lr": 0.5, "weight_decay": 0.0},
         {"params": [("2.weight", names["2.weight"]), ("2.bias", names["2.bias"])],
          "role": "adamw", "lr": 0.25}])
    assert [(g["role"], g["lr"], len(g["params"])) for g in one.param_groups] == [
        ("muon", 0.5, 1), ("adamw", 0.25, 2)]
    one = muon(m, role=lambda name, p: "adamw" if name.startswith("2") else None)
    assert [len(g["params"]) for g in one.param_groups] == [1, 3]
    m[0].weight.requires_grad_(False)
    assert sum(len(g["params"]) for g in muon(m).param_groups) == 3
    m[0].weight = m[2].weight = torch.nn.Parameter(torch.ones(6, 6))  # tied
    assert [len(g["params"]) for g in muon(m).param_groups] == [1, 2]


def w(*shape, **how):
    return "w", torch.nn.Parameter(torch.ones(*shape, **how))


BAD = muonrt.InvalidArgumentError


@pytest.mark.parametrize("params, settings, error, words", [
    ([w(2, 3)[1]], {}, BAD, "pass model.named_parameters"),
    ([{"params": [w(2, 3)], "learning_rate": 1}], {}, TypeError, "'learning_rate'; pass lr="),
    ([w(2, 3, device="meta")], {}, BAD, "'w' is on device 'meta'"),
    ([w(2, 3, 4)], {}, BAD, "with role="),
    ([{"params": [w(2, 3, 4)], "batch_dims": 3}], {}, BAD, "param 'w'.*batch_dims"),
    ([w(2, 3)], {"role": lambda *_: ("muon", {"rows": 2})}, BAD, r"no setting \['rows'\]"),
    ([w(2, 3)], {"role": lambda *_: ("muon", {}, 1)}, BAD, "use 'muon', 'adamw', or a pair"),
    ([w(2, 3)], {"role": lambda *_: ("adamw", {"transposed": True})}, BAD,
     "'adamw' cannot be combined with .'transposed'."),
    ([w(2, 3)], {"role": lambda *_: ("muon", {"batch_dims": "x"})}, BAD,
     "batch_dims is 'x'; pass a value of type int"),
    ([w(2, 3)], {"preset": "moon"}, BAD, "preset is 'moon'.*moonlight"),
    ([w(2, 3)], {"preset": "muonclip"}, muonrt.NotSupportedError, "muonclip.*QK-clip")])
def test_rejected_arguments(params, settings, error, words):
    with pytest.raises(error, match=words):
        muonrt.torch.Muon(params, **settings)


@pytest.mark.parametrize("name", [n for n in muonrt.torch.presets() if n != "muonclip"])
def test_each_preset_steps(name):
    m = two_layers()
    with pytest.warns(UserWarning, match="schedule") if name == "modded_nanogpt" \
            else contextlib.nullcontext():
        one = muon(m, preset=name)
    before = copy.deepcopy(m)
    train(m, range(2), one)
    assert one.last_report.orthogonalized == {"adamw": 0, "muonbp": 8}.get(name, 2)
    assert all(not torch.equal(p, b) for p, b in zip(m.parameters(), before.parameters()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_parameters_that_move_are_bound_again(dtype):
    m, still = two_layers(dtype), two_layers(dtype)
    one, other = muon(m), muon(still)
    left = m[0].weight.data
    for step in range(3):
        train(m, [step], one)
        train(still, [step], other)
        if step == 0:
            before = left.clone()
        for p in m.parameters():
            p.data = p.data.clone()
    assert torch.equal(left, before)  # the step did not write to the old memory
    same_bits(m, still)


def test_swapped_memory_is_bound_and_unsupported_memory_is_rejected():
    a, b, c = params = [torch.nn.Parameter(torch.full((2, 3), float(i))) for i in range(3)]
    one = muonrt.torch.Muon([(f"w{i}", p) for i, p in enumerate(params)], lr=0.0)
    a.data, b.data, c.data = b.data, c.data, a.data
    for p in params:
        p.grad = torch.ones(2, 3)
    one.step()
    assert [p.data_ptr() for p in params] == [place[0] for place in one._memory]
    whole = b.data
    for data, words in ((a.data, "'w1'"), (whole[:1], r"\(2, 3\)"), (whole.bfloat16(), "bfloat")):
        with pytest.raises((muonrt.InvalidArgumentError, RuntimeError), match=words):
            b.data = data
            one.step()
        b.data = whole
    one.step()
    assert one.last_report.step == 2


def test_gradients_of_any_strides():
    m, other = two_layers(), two_layers()
    inject(m, 0)
    m[0].weight.grad = m[0].weight.grad.t().contiguous().t()
    muon(m).step()
    train(other, [0], muon(other))
    same_bits(m, other)


def test_master_weights_of_bfloat16():
    m = two_layers(torch.bfloat16)
    one = muon(m)
    train(m, [0], one)
    master = one.state[m[0].weight]["master"]
    assert master.dtype == torch.float32
    assert torch.equal(master.bfloat16(), m[0].weight.detach())
    with torch.no_grad():
        m[0].weight.fill_(1.0)
    one.reset_masters()
    assert float(master.min()) == 1.0


def test_health_and_plan():
    m = two_layers()
    one = muon(m, health_every=1)
    train(m, [0], one)
    health = one.health()
    assert health["muonrt/step"] == 1 and health["muonrt/0.weight/0/update_rms"] > 0
    assert all(np.isscalar(v) for v in health.values())
    assert "0.weight" in str(one.plan())


def test_backward_after_the_step_sees_that_parameters_changed():
    m = two_layers()
    loss = m(drawn(0, 4, 12)).square().mean()
    loss.backward(retain_graph=True)
    muon(m).step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
