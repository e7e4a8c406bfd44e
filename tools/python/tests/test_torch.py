"""muonrt.torch.Muon on one rank: values against torch's own optimizers, and how trainers use it."""

import copy

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import muonrt  # noqa: E402
import muonrt.torch  # noqa: E402

AS_TORCH = dict(muon={"coefficients": "keller_jordan", "normalize": "max_eps",
                      "scale_rule": "original"}, transport_dtype="float32")


def model(dtype=torch.float32):
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(12, 20), torch.nn.Tanh(),
                               torch.nn.Linear(20, 6)).to(dtype)


def inject(m, step):
    """Gradients that follow from the step alone."""
    generator = torch.Generator().manual_seed(step)
    for p in m.parameters():
        p.grad = torch.randn(p.shape, generator=generator).to(p.dtype)


class Float32Torch:
    """The module torch, but for one name."""

    bfloat16 = torch.float32

    def __getattr__(self, name):
        return getattr(torch, name)


def torch_muon_in_float32(monkeypatch):
    """torch.optim.Muon with its bf16 iteration in float32, from its own source."""
    from torch.optim import _muon

    monkeypatch.setattr(_muon, "torch", Float32Torch())
    monkeypatch.setattr(torch.Tensor, "bfloat16", lambda self: self.float())  # torch 2.9
    return _muon.Muon


def test_as_torch_optim_muon_and_adamw(monkeypatch):
    ours, theirs = model(), model()
    one = muonrt.torch.Muon(ours.named_parameters(), lr=0.02, adamw_lr=3e-3, betas=(0.9, 0.999),
                            iteration_dtype="float32", **AS_TORCH)
    matrices = [p for p in theirs.parameters() if p.ndim == 2]
    rest = [p for p in theirs.parameters() if p.ndim != 2]
    pair = [torch_muon_in_float32(monkeypatch)(matrices, lr=0.02, weight_decay=0.1),
            torch.optim.AdamW(rest, lr=3e-3, weight_decay=0.01)]
    for step in range(20):
        for m in (ours, theirs):
            inject(m, step)
        before = [p.detach().clone() for p in ours.parameters()]
        before_theirs = [p.detach().clone() for p in theirs.parameters()]
        one.step()
        for optimizer in pair:
            optimizer.step()
        for p, q, b, c in zip(ours.parameters(), theirs.parameters(), before, before_theirs):
            assert torch.allclose(p - b, q - c, atol=1e-5), step
    assert one.last_report.step == 20


def test_it_trains():
    m = model()
    one = muonrt.torch.Muon(m.named_parameters(), lr=0.02, adamw_lr=1e-2, weight_decay=0.0)
    x = torch.randn(64, 12)
    y = x[:, :6] * x[:, 6:]
    losses = []

    def closure():
        one.zero_grad()
        loss = ((m(x) - y) ** 2).mean()
        loss.backward()
        return loss

    for _ in range(150):
        losses.append(one.step(closure).item())
    assert losses[-1] < losses[0] / 5, losses[::30]


def test_schedulers_change_the_rate_of_each_group():
    m = model()
    one = muonrt.torch.Muon(m.named_parameters(), lr=0.02, adamw_lr=0.01, weight_decay=0.0,
                            adamw_weight_decay=0.0)
    assert [g["role"] for g in one.param_groups] == ["muon", "adamw"]
    schedule = torch.optim.lr_scheduler.LambdaLR(
        one, [lambda step: 0.5**step, lambda step: 1.0 if step == 0 else 0.0])
    moved = []
    for step in range(2):
        inject(m, 0)
        before = [p.detach().clone() for p in m.parameters()]
        one.step()
        schedule.step()
        moved.append([(p - b).abs().max().item() for p, b in zip(m.parameters(), before)])
    assert moved[1][1] == 0 and moved[0][1] > 0  # AdamW's rate is 0 now
    assert moved[1][0] == pytest.approx(moved[0][0] / 2, rel=0.01)  # equal gradients, half the rate


def test_roles_and_groups():
    m = model()
    names = dict(m.named_parameters())
    one = muonrt.torch.Muon(
        [{"params": [("0.weight", names["0.weight"])], "lr": 0.5, "weight_decay": 0.0},
         {"params": [("2.weight", names["2.weight"]), ("2.bias", names["2.bias"])],
          "role": "adamw", "lr": 0.25}])
    assert [(g["role"], g["lr"], len(g["params"])) for g in one.param_groups] == [
        ("muon", 0.5, 1), ("adamw", 0.25, 2)]
    one = muonrt.torch.Muon(m.named_parameters(),
                            role=lambda name, p: "adamw" if name.startswith("2") else None)
    assert [len(g["params"]) for g in one.param_groups] == [1, 3]


def test_stacks_and_kernels():
    experts = torch.nn.Parameter(torch.randn(3, 8, 6))
    kernel = torch.nn.Parameter(torch.randn(4, 3, 2, 2))
    named = [("experts.w1", experts), ("conv.weight", kernel)]
    with pytest.raises(muonrt.InvalidArgumentError, match="role="):
        muonrt.torch.Muon(named)
    one = muonrt.torch.Muon(named, lr=0.1, weight_decay=0.0, role=lambda name, p: (
        ("muon", "stack") if p.ndim == 3 else ("muon", "matrix")), **AS_TORCH)
    alone = torch.nn.Parameter(experts[1].detach().clone())
    flat = torch.nn.Parameter(kernel.detach().reshape(4, 12).clone())
    other = muonrt.torch.Muon([("alone", alone), ("flat", flat)], lr=0.1, weight_decay=0.0,
                              **AS_TORCH)
    experts.grad, kernel.grad = torch.randn(3, 8, 6), torch.randn(4, 3, 2, 2)
    alone.grad, flat.grad = experts.grad[1].clone(), kernel.grad.reshape(4, 12).clone()
    one.step()
    other.step()
    assert one.last_report.orthogonalized == 4
    assert torch.equal(experts[1], alone) and torch.equal(kernel.reshape(4, 12), flat)


def test_a_parameter_without_a_gradient_sits_out():
    m = model()
    one = muonrt.torch.Muon(m.named_parameters())
    inject(m, 0)
    m[0].weight.grad = None
    before = m[0].weight.detach().clone()
    one.step()
    assert torch.equal(m[0].weight, before) and one.last_report.step == 1


def test_frozen_parameters_are_left_out_and_unnamed_refused():
    m = model()
    m[0].weight.requires_grad_(False)
    one = muonrt.torch.Muon(m.named_parameters())
    assert sum(len(g["params"]) for g in one.param_groups) == 3
    with pytest.raises(muonrt.InvalidArgumentError, match="named_parameters"):
        muonrt.torch.Muon(m.parameters())
    with pytest.raises(TypeError, match="no setting"):
        muonrt.torch.Muon([{"params": m.named_parameters(), "learning_rate": 1}])
    with pytest.raises(muonrt.InvalidArgumentError, match="has no name"):
        one.add_param_group({"params": [m[0].weight.requires_grad_()]})


def test_meta_parameters_are_refused():
    with torch.device("meta"):
        nowhere = torch.nn.Linear(4, 4)
    with pytest.raises(muonrt.InvalidArgumentError, match="'weight' is on device 'meta'"):
        muonrt.torch.Muon(nowhere.named_parameters())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_parameters_that_move_are_bound_anew(dtype):
    m, still = model(dtype), model(dtype)
    one, other = (muonrt.torch.Muon(x.named_parameters()) for x in (m, still))
    left = m[0].weight.data
    for step in range(3):
        for x, optimizer in ((m, one), (still, other)):
            inject(x, step)
            optimizer.step()
        if step < 2:
            for p in m.parameters():
                p.data = p.data.clone()
        if step == 0:
            before = left.clone()
    assert torch.equal(left, before)  # nobody writes to where it was
    for p, q in zip(m.parameters(), still.parameters()):
        assert torch.equal(p, q)


def test_a_parameter_that_moves_to_what_cannot_be_taken_is_refused():
    m = model()
    one = muonrt.torch.Muon(m.named_parameters())
    inject(m, 0)
    whole = m[0].weight.data
    for data, words in ((whole.t().contiguous().t(), "row-major"), (whole[:4], r"\(4, 12\)"),
                        (whole.bfloat16(), "bfloat")):
        with pytest.raises((muonrt.InvalidArgumentError, RuntimeError), match=words):
            m[0].weight.data = data
            one.step()
        m[0].weight.data = whole
    one.step()
    assert one.last_report.step == 1


def test_gradients_of_any_strides():
    m = model()
    one = muonrt.torch.Muon(m.named_parameters())
    other_model = copy.deepcopy(m)
    other = muonrt.torch.Muon(other_model.named_parameters())
    inject(m, 0)
    inject(other_model, 0)
    m[0].weight.grad = m[0].weight.grad.t().contiguous().t()
    one.step()
    other.step()
    assert torch.equal(m[0].weight, other_model[0].weight)


def test_grad_scaler():
    m, plain = model(), model()
    one, other = (muonrt.torch.Muon(x.named_parameters()) for x in (m, plain))
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    x = torch.randn(8, 12)
    scaler.scale(m(x).square().mean()).backward()
    scaler.step(one)
    scaler.update()
    plain(x).square().mean().backward()
    other.step()
    for p, q in zip(m.parameters(), plain.parameters()):
        assert torch.allclose(p, q, atol=1e-6)
    before = m[0].weight.detach().clone()
    m[0].weight.grad[0, 0] = float("inf")
    scaler.step(one)
    scaler.update()
    assert one.last_report.skipped and torch.equal(m[0].weight, before)
    assert scaler.get_scale() == 512.0


def test_master_weights_of_bfloat16():
    m = model(torch.bfloat16)
    one = muonrt.torch.Muon(m.named_parameters())
    inject(m, 0)
    one.step()
    master = one.state[m[0].weight]["master"]
    assert master.dtype == torch.float32
    assert torch.equal(master.bfloat16(), m[0].weight.detach())
    with torch.no_grad():
        m[0].weight.fill_(1.0)
    one.take_params()
    assert float(master.min()) == 1.0


def test_the_state_continues_to_the_last_bit():
    m = model()
    one = muonrt.torch.Muon(m.named_parameters(), lr=0.02)
    for step in range(3):
        inject(m, step)
        if step == 1:
            m[0].bias.grad = None  # fewer updates than steps
        one.step()
    saved = copy.deepcopy(one.state_dict())
    twin = copy.deepcopy(m)
    other = muonrt.torch.Muon(twin.named_parameters(), lr=0.7)
    other.load_state_dict(saved)
    assert other.param_groups[0]["lr"] == 0.02
    for step in range(3, 5):
        for x, optimizer in ((m, one), (twin, other)):
            inject(x, step)
            optimizer.step()
    for p, q in zip(m.parameters(), twin.parameters()):
        assert torch.equal(p, q)
    assert other.last_report.step == 5 and int(other.state[twin[0].weight]["step"]) == 5
    assert int(one.state[m[0].bias]["step"]) == int(other.state[twin[0].bias]["step"]) == 4


def test_a_state_of_torchs_own_optimizers():
    m = model()
    matrices = [p for p in m.parameters() if p.ndim == 2]
    theirs = torch.optim.Muon(matrices, lr=0.02)
    inject(m, 0)
    theirs.step()
    one = muonrt.torch.Muon([(n, p) for n, p in m.named_parameters() if p.ndim == 2])
    one.load_state_dict(theirs.state_dict())
    got = one.state[matrices[0]]["momentum_buffer"]
    assert torch.equal(got, theirs.state[matrices[0]]["momentum_buffer"])
    with pytest.raises(muonrt.InvalidArgumentError, match="groups of"):
        muonrt.torch.Muon(m.named_parameters()).load_state_dict(theirs.state_dict())


def test_tied_weights_are_one_parameter():
    m = torch.nn.Sequential(torch.nn.Linear(6, 6, bias=False), torch.nn.Linear(6, 6, bias=False))
    m[1].weight = m[0].weight
    one = muonrt.torch.Muon(m.named_parameters())
    m(torch.randn(4, 6)).square().mean().backward()
    one.step()
    assert one.last_report.orthogonalized == 1


def test_health_and_plan():
    m = model()
    one = muonrt.torch.Muon(m.named_parameters(), health_every=1)
    inject(m, 0)
    one.step()
    health = one.health()
    assert health["muonrt/step"] == 1 and health["muonrt/0.weight/0/update_rms"] > 0
    assert all(np.isscalar(v) for v in health.values())
    assert "0.weight" in one.plan


def test_backward_after_the_step_sees_that_parameters_changed():
    m = model()
    one = muonrt.torch.Muon(m.named_parameters())
    loss = m(torch.randn(4, 12)).square().mean()
    loss.backward(retain_graph=True)
    one.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
