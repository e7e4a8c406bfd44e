"""Published optimizers by name: each steps, and states of other kinds are converted."""

import pytest

torch = pytest.importorskip("torch")

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


def test_an_unknown_one_is_refused():
    with pytest.raises(muonrt.InvalidArgumentError, match="preset is 'moon'.*moonlight"):
        muonrt.torch.Muon(model().named_parameters(), preset="moon")


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
