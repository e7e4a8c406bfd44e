"""Published optimizers by name: settings arrive, and one of them agrees with its own formulas."""

import copy

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import textbook  # noqa: E402
from test_torch import inject, model  # noqa: E402

import muonrt  # noqa: E402
import muonrt.torch  # noqa: E402


@pytest.mark.parametrize("name", muonrt.torch.presets())
def test_each_steps(name):
    m = model()
    if name == "muonclip":
        with pytest.raises(muonrt.NotSupportedError, match="muonclip.*logits"):
            muonrt.torch.Muon(m.named_parameters(), preset=name)
        return
    if name == "modded_nanogpt":
        with pytest.warns(UserWarning, match="schedule"):
            one = muonrt.torch.Muon(m.named_parameters(), preset=name)
    else:
        one = muonrt.torch.Muon(m.named_parameters(), preset=name)
    before = [p.detach().clone() for p in m.parameters()]
    for step in range(2):
        inject(m, step)
        one.step()
    assert one.last_report.orthogonalized == {"adamw": 0, "muonbp": 8}.get(name, 2)
    assert all(not torch.equal(p, b) for p, b in zip(m.parameters(), before))


def test_moonlight_from_its_formulas():
    m = model()
    weights = [p.detach().double().numpy() for p in m.parameters() if p.ndim == 2]
    # Its bf16 iteration in f32, to see the formulas and not the rounding.
    one = muonrt.torch.Muon(m.named_parameters(), preset="moonlight", lr=0.02,
                            muon={"iteration_dtype": "float32"}, transport_dtype="float32")
    assert [(g["lr"], g["weight_decay"]) for g in one.param_groups] == [(0.02, 0.1), (0.001, 0.1)]
    buffers = [np.zeros_like(w) for w in weights]
    for step in range(3):
        inject(m, step)
        grads = [p.grad.double().numpy() for p in m.parameters() if p.ndim == 2]
        one.step()
        for w, buffer, grad in zip(weights, buffers, grads):
            buffer[...] = 0.95 * buffer + grad
            update = textbook.newton_schulz(grad + 0.95 * buffer)
            w *= 1 - 0.02 * 0.1
            w -= 0.02 * 0.2 * np.sqrt(max(w.shape)) * update
    for p, w in zip((p for p in m.parameters() if p.ndim == 2), weights):
        np.testing.assert_allclose(p.detach().numpy(), w, atol=2e-6)


def test_an_unknown_one_is_refused():
    with pytest.raises(muonrt.InvalidArgumentError, match="preset is 'moon'.*moonlight"):
        muonrt.torch.Muon(model().named_parameters(), preset="moon")


def test_normuons_moments_are_in_the_state():
    m = model()
    one = muonrt.torch.Muon(m.named_parameters(), preset="normuon")
    for step in range(2):
        inject(m, step)
        one.step()
    twin = copy.deepcopy(m)
    saved = copy.deepcopy(one.state_dict())
    moments = saved["state"][0]["normuon"]
    assert moments.shape == (20,) and (moments > 0).all()
    other = muonrt.torch.Muon(twin.named_parameters(), preset="normuon")
    other.load_state_dict(saved)
    for x, optimizer in ((m, one), (twin, other)):
        inject(x, 2)
        optimizer.step()
    for p, q in zip(m.parameters(), twin.parameters()):
        assert torch.equal(p, q)


def test_a_mean_becomes_a_heavy_ball():
    m = model()
    named = [(n, p) for n, p in m.named_parameters() if p.ndim == 2]
    theirs = torch.optim.Muon([p for _, p in named], lr=0.02, momentum=0.9)
    inject(m, 0)
    theirs.step()
    one = muonrt.torch.Muon(named, preset="moonlight")
    one.load_state_dict(theirs.state_dict())
    got = one.state[named[0][1]]["momentum_buffer"]
    # After one step the mean is a tenth of the gradient, the heavy ball all of it.
    assert torch.allclose(got, m[0].weight.grad, rtol=1e-6)
    assert one.param_groups[0]["momentum"] == 0.9
