"""muonrt.torch.Muon saves into muonrt's own folder: a new model goes on to the same bits, over one
rank and over FSDP2."""

import pytest

torch = pytest.importorskip("torch")

from test_torch import inject, model  # noqa: E402
from test_torch_ranks import Model, fsdp, local_of, one_rank, optimizer  # noqa: E402
from test_torch_ranks import inject as inject_by_name  # noqa: E402
from torch_ranks import full, on_gloo  # noqa: E402

import muonrt  # noqa: E402
import muonrt.torch  # noqa: E402

HALF, ALL = 2, 4  # steps


def muon(m, **settings):
    return muonrt.torch.Muon(m.named_parameters(), adamw_lr=0.01, **settings)


def steps(m, one, first, last):
    for step in range(first, last):
        inject(m, step)
        if step == 1:
            m[0].bias.grad = None  # fewer updates than steps
        one.step()


def zeros(dtype=torch.float32):
    m = model(dtype)
    with torch.no_grad():
        for p in m.parameters():
            p.zero_()
    return m


def same(m, one, twin, other):
    """Whether parameters and all that torch sees of the state are equal."""
    for p, q in zip(m.parameters(), twin.parameters(), strict=True):
        assert torch.equal(p, q)
        assert one.state[p].keys() == other.state[q].keys()
        for key, value in one.state[p].items():
            assert torch.equal(value, other.state[q][key]), key
    assert [g["steps"] for g in one.param_groups] == [g["steps"] for g in other.param_groups]


@pytest.mark.parametrize("dtype, settings", [
    (torch.float32, {"muon": {"normuon": "rows"}}),
    (torch.bfloat16, {"muon": {"momentum_dtype": "bfloat16"}})])
def test_a_new_model_goes_on_to_the_last_bit(tmp_path, dtype, settings):
    m, twin = model(dtype), zeros(dtype)
    one, other = muon(m, **settings), muon(twin, **settings)
    steps(m, one, 0, HALF)
    one.save(tmp_path, with_params=True)
    held = {key: value.data_ptr() for key, value in other.state[twin[0].weight].items()}
    assert other.load(tmp_path) == []
    one.state_dict()  # brings NorMuon's moments into its `state`; a load has
    same(m, one, twin, other)
    assert int(other.state[twin[0].weight]["step"]) == HALF
    assert int(other.state[twin[0].bias]["step"]) == HALF - 1
    assert {key: value.data_ptr() for key, value in other.state[twin[0].weight].items()} == held
    if "normuon" in held:
        assert other.state[twin[0].weight]["normuon"].any()
    for x, optimizer_of_x in ((m, one), (twin, other)):
        steps(x, optimizer_of_x, HALF, ALL)
        optimizer_of_x.state_dict()
    same(m, one, twin, other)


def test_a_model_that_was_loaded_by_torch_goes_on_with_its_state(tmp_path):
    m, twin = model(torch.bfloat16), zeros(torch.bfloat16)
    one, other = muon(m), muon(twin)
    steps(m, one, 0, HALF)
    one.save(tmp_path)
    with pytest.raises(muonrt.InvalidArgumentError, match="'0.weight' has other values"):
        other.load(tmp_path)
    assert int(other.state[twin[0].weight]["step"]) == 0
    twin.load_state_dict(m.state_dict())
    other.load(tmp_path)  # no take_params: master weights are the checkpoint's
    for x, optimizer_of_x in ((m, one), (twin, other)):
        steps(x, optimizer_of_x, HALF, ALL)
    same(m, one, twin, other)


def test_rates_stay_and_other_settings_are_noted(tmp_path):
    m = model()
    muon(m, lr=0.5).save(tmp_path)
    other = muon(m, lr=0.25)
    other.param_groups[0]["momentum"] = 0.875  # after the creation
    notes = other.load(tmp_path)
    assert other.param_groups[0]["lr"] == 0.25 and other.param_groups[0]["momentum"] == 0.875
    assert len(notes) == 1 and "momentum is 0.875, and was 0.95" in notes[0], notes


def test_parameters_that_were_written_or_moved_are_seen(tmp_path):
    m = model()
    one = muon(m)
    one.save(tmp_path, with_params=True)
    loss = m(torch.randn(4, 12)).square().mean()
    one.load(tmp_path)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    saved = m[0].weight.detach().clone()
    m[0].weight.data = torch.zeros_like(saved)
    one.load(tmp_path)
    assert torch.equal(m[0].weight, saved)
    m[0].weight.data = saved.t().contiguous().t()
    for call in (one.save, one.save_begin, one.load):
        with pytest.raises(muonrt.InvalidArgumentError, match="'0.weight'.*row-major"):
            call(tmp_path)


def over_two(rank, size, given, wanted, momenta, taken):
    """Loads, goes on for a step, saves."""
    m = fsdp(Model(), size)
    one = optimizer(m, **NORMUON)
    one.load(given)
    for name, p in m.named_parameters():
        assert full(p).tobytes() == wanted[name].tobytes(), name
        if name in momenta:
            assert full(one.state[p]["momentum_buffer"]).tobytes() == momenta[name].tobytes()
    inject_by_name(m, 3)
    one.step()
    one.save(taken, with_params=True)
    if rank == 1:
        p = m.up.weight  # moves to columns that lie one after the other
        p._local_tensor = p._local_tensor.t().contiguous().t()
    with pytest.raises(muonrt.InvalidArgumentError, match="rank 1: param 'up.weight'.*row-major"):
        one.save(taken)
    moments = one.state[m.up.weight]["normuon"].sum().item()
    one.close()
    return list(local_of(m.up.weight).shape), moments


NORMUON = {"muon": {"normuon": "rows"}}


def test_one_rank_then_fsdp2_over_two_then_one(tmp_path):
    m, last = Model(), Model()
    one, other = optimizer(m, **NORMUON), optimizer(last, **NORMUON)
    wanted, momenta = one_rank(**NORMUON)
    for step in range(3):
        inject_by_name(m, step)
        one.step()
    one.save(tmp_path / "one", with_params=True)
    shapes, moments = zip(*on_gloo(2, over_two, str(tmp_path / "one"), wanted, momenta,
                                   str(tmp_path / "two")))
    assert shapes == ([7, 8], [6, 8]) and moments[0] == moments[1] > 0
    other.load(tmp_path / "two")
    inject_by_name(m, 3)
    one.step()
    for step in (4, 5):
        for x, optimizer_of_x in ((m, one), (last, other)):
            inject_by_name(x, step)
            optimizer_of_x.step()
            optimizer_of_x.state_dict()
    same(m, one, last, other)
