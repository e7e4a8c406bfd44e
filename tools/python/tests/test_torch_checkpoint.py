"""Tests that muonrt.torch.Muon continues with bitwise identical results from a state_dict, from
torch.distributed.checkpoint and from muonrt's checkpoint, on one rank and with FSDP2."""

import pytest

torch = pytest.importorskip("torch")

from test_torch import muon  # noqa: E402
from torch_models import (  # noqa: E402
    Model,
    drawn,
    fsdp,
    full,
    inject,
    one_rank,
    optimizer,
    same_bits,
    same_part,
    train,
    two_layers,
)
from torch_ranks import on_gloo  # noqa: E402

import muonrt  # noqa: E402
import muonrt.torch  # noqa: E402
from muonrt._torch_ranks import local_of  # noqa: E402

NORMUON = {"muon": {"normuon_axis": "rows"}}
BFLOAT16 = {"muon": {"momentum_dtype": "bfloat16"}}


def steps(m, one, first, last):
    for step in range(first, last):
        inject(m, step)
        if step == 1:
            m[0].bias.grad = None  # fewer updates than steps
        one.step()


def same(m, one, twin, other):
    """Checks that parameters and all entries of `state` are bitwise identical."""
    same_bits(m, twin)
    for x in (one, other):
        x.state_dict()  # copies NorMuon's second moments to `state`
    for p, q in zip(m.parameters(), twin.parameters()):
        assert one.state[p].keys() == other.state[q].keys()
        for key, value in one.state[p].items():
            assert torch.equal(value, other.state[q][key]), key
    assert [g["steps"] for g in one.param_groups] == [g["steps"] for g in other.param_groups]


def zero(m):
    for p in m.parameters():
        local_of(p).zero_()


def by_state_dict(one, other, m, twin, tmp_path):
    twin.load_state_dict(m.state_dict())
    torch.save(one.state_dict(), tmp_path / "state.pt")
    other.load_state_dict(torch.load(tmp_path / "state.pt"))
    assert other.param_groups[0]["lr"] == 3e-4


def by_folder(one, other, m, twin, tmp_path):
    one.save(tmp_path)
    assert [note.split(":")[0] for note in other.load(tmp_path)] == ["parameters"]
    assert other.param_groups[0]["lr"] == 0.7  # load() does not change learning rates
    for group in other.param_groups:
        group["lr"] = 3e-4


@pytest.mark.parametrize("way", [by_state_dict, by_folder])
@pytest.mark.parametrize("dtype, settings", [(torch.float32, NORMUON), (torch.bfloat16, BFLOAT16)])
def test_a_new_model_continues_bit_for_bit(tmp_path, way, dtype, settings):
    m, twin = two_layers(dtype), two_layers(dtype)
    zero(twin)
    one, other = muon(m, **settings), muon(twin, lr=0.7, **settings)
    steps(m, one, 0, 2)
    held = {key: value.data_ptr() for key, value in other.state[twin[0].weight].items()}
    way(one, other, m, twin, tmp_path)
    same(m, one, twin, other)
    assert int(other.state[twin[0].weight]["step"]) == 2
    assert int(other.state[twin[0].bias]["step"]) == 1
    assert {key: value.data_ptr() for key, value in other.state[twin[0].weight].items()} == held
    assert dtype != torch.float32 or other.state[twin[0].weight]["normuon"].any()
    for x, optimizer_of_x in ((m, one), (twin, other)):
        steps(x, optimizer_of_x, 2, 4)
    same(m, one, twin, other)


@pytest.mark.parametrize("settings, factor", [({}, 1.0), ({"preset": "moonlight"}, 10.0)])
def test_a_state_of_torch_optim_muon(settings, factor):
    m = two_layers()
    named = [(n, p) for n, p in m.named_parameters() if p.ndim == 2]
    theirs = torch.optim.Muon([p for _, p in named], lr=0.02, momentum=0.9)
    train(m, [0], theirs)
    one = muonrt.torch.Muon(named, **settings)
    one.load_state_dict(theirs.state_dict())
    # After one step, torch's exponential moving average is a tenth of the gradient, and a heavy-ball
    # sum is the gradient.
    for p in (m[0].weight, m[2].weight):
        assert torch.allclose(one.state[p]["momentum_buffer"], factor * 0.1 * p.grad, rtol=1e-6)
    assert one.param_groups[0]["momentum"] == 0.9
    with pytest.raises(muonrt.InvalidArgumentError, match="groups of"):
        muon(m).load_state_dict(theirs.state_dict())


def test_states_of_torch():
    m = two_layers()
    rest = [(n, p) for n, p in m.named_parameters() if p.ndim == 1]
    theirs = torch.optim.AdamW(rest, lr=0.5)
    train(m, [0], theirs)
    one = muonrt.torch.Muon(rest)
    one.load_state_dict(theirs.state_dict())
    assert torch.equal(one.state[m[0].bias]["exp_avg"], theirs.state[m[0].bias]["exp_avg"])
    assert one.param_groups[0]["lr"] == 0.5 and one.param_groups[0]["betas"] == (0.9, 0.999)
    whole = torch.optim.AdamW(m.parameters())
    train(m, [0], whole)
    with pytest.raises(muonrt.InvalidArgumentError, match="python -m muonrt.convert"):
        muon(m).load_state_dict(whole.state_dict())
    matrices = [(n, p) for n, p in m.named_parameters() if p.ndim == 2]
    with pytest.raises(muonrt.InvalidArgumentError, match="no 'momentum_buffer'.*muonrt.convert"):
        muonrt.torch.Muon(matrices).load_state_dict(torch_adamw_state(matrices))


def torch_adamw_state(pairs):
    theirs = torch.optim.AdamW(pairs)
    for _, p in pairs:
        p.grad = torch.ones_like(p)
    theirs.step()
    return theirs.state_dict()


def test_other_settings_are_noted(tmp_path):
    m = two_layers()
    muon(m, lr=0.5).save(tmp_path)
    other = muon(m, lr=0.25)
    other.param_groups[0]["momentum"] = 0.875  # changed after the creation
    notes = other.load(tmp_path)
    assert other.param_groups[0]["momentum"] == 0.875
    assert len(notes) == 2 and "momentum is 0.875, and was 0.95" in notes[1], notes


def test_load_marks_parameters_as_written_and_save_binds_moved_ones(tmp_path):
    m = two_layers()
    one = muon(m)
    one.save(tmp_path)
    loss = m(drawn(0, 4, 12)).square().mean()
    one.load(tmp_path)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    saved = m[0].weight.detach().clone()
    m[0].weight.data = torch.zeros_like(saved)
    one.load(tmp_path)
    assert torch.equal(m[0].weight, saved)
    m[0].weight.data = torch.zeros_like(saved).t().contiguous().t()
    one.load(tmp_path)
    assert torch.equal(m[0].weight, saved) and not m[0].weight.is_contiguous()
    m[0].weight.data = saved[:1]
    for call in (one.save, one.save_begin, one.load):
        with pytest.raises(muonrt.InvalidArgumentError, match="'0.weight'.*shape"):
            call(tmp_path)


def over_two(rank, size, loaded, wanted, momenta, saved):
    """Loads a checkpoint, runs a step, and saves."""
    m = fsdp(Model())
    one = optimizer(m, **NORMUON)
    one.load(loaded)
    for name, p in m.named_parameters():
        same_part(name, p, wanted[name])
        if name in momenta:
            same_part(name, one.state[p]["momentum_buffer"], momenta[name])
    train(m, [3], one)
    one.save(saved)
    shape = list(local_of(m.up.weight).shape)
    if rank == 1:
        p = m.up.weight  # moves to memory of a different size
        p._local_tensor = p._local_tensor[:1]
    with pytest.raises(muonrt.InvalidArgumentError, match="rank 1: param 'up.weight'.*shape"):
        one.save(saved)
    return shape, one.state[m.up.weight]["normuon"].sum().item()


def test_one_rank_then_fsdp2_over_two_then_one(tmp_path):
    m, last = Model(), Model()
    one, other = optimizer(m, **NORMUON), optimizer(last, **NORMUON)
    train(m, range(3), one)
    one.save(tmp_path / "one")
    shapes, moments = zip(*on_gloo(2, over_two, str(tmp_path / "one"), *one_rank(**NORMUON),
                                   str(tmp_path / "two")))
    assert shapes == ([7, 8], [6, 8]) and moments[0] == moments[1] > 0
    other.load(tmp_path / "two")
    train(m, range(3, 6), one)
    train(last, range(4, 6), other)
    same(m, one, last, other)


def by_dcp(rank, size, folder, saves):
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    m = fsdp(Model())
    one = optimizer(m, **NORMUON)
    if saves:
        train(m, range(2), one)
    else:
        zero(m)
    model_state, optimizer_state = get_state_dict(m, one)
    state = {"model": model_state, "optimizer": optimizer_state}
    if saves:
        dcp.save(state, checkpoint_id=folder)
        return None
    dcp.load(state, checkpoint_id=folder)
    set_state_dict(m, one, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    assert one._core.steps == 2
    train(m, [2], one)
    assert one.last_report.step == 3
    return {name: full(p) for name, p in m.named_parameters()}


@pytest.mark.parametrize("before, after", [(3, 2), (2, 4)])
def test_a_dcp_checkpoint_continues_over_other_ranks(tmp_path, before, after):
    on_gloo(before, by_dcp, str(tmp_path), True)
    want, _ = one_rank(steps=3, **NORMUON)
    for got in on_gloo(after, by_dcp, str(tmp_path), False):
        for name in want:
            assert got[name].tobytes() == want[name].tobytes(), name
