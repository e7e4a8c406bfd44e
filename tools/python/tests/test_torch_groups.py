"""Tests the groups of muonrt.torch.Muon: their learning rates, and add_param_group, after which the
other parameters must continue with bitwise identical results."""

import warnings

import pytest

torch = pytest.importorskip("torch")

from torch_models import (  # noqa: E402
    Model,
    fsdp,
    full,
    optimizer,
    same_bits,
    same_part,
    train,
)
from torch_ranks import on_gloo  # noqa: E402

import muonrt  # noqa: E402
import muonrt.torch  # noqa: E402

LATE = ("up.weight", "up.bias")
SETTINGS = dict(muon={"normuon_axis": "rows"})


def unfreeze(m):
    """Runs two steps without the parameters LATE, and then two with them. These parameters always
    have gradients."""
    late = [(n, p) for n, p in m.named_parameters() if n in LATE]
    for _, p in late:
        p.requires_grad_(False)
    one = optimizer(m, **SETTINGS)
    train(m, range(2), one)
    for _, p in late:
        p.requires_grad_(True)
    one.state[m.embed.weight]["mine"] = torch.ones(1)
    one.add_param_group({"params": late, "lr": 0.05})
    # Entries that the caller adds to `state` are kept.
    assert one.state[m.embed.weight].pop("mine") == 1
    train(m, range(2, 4), one)
    return one


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_parameters_continue_and_new_ones_start(dtype):
    m, rest, late = (Model().to(dtype) for _ in range(3))
    one = unfreeze(m)
    # For comparison, one optimizer trains the original parameters for four steps, and another one
    # trains the late parameters for two steps.
    for x, steps, settings in ((rest, range(4), {}),
                               (late, range(2, 4), dict(lr=0.05, adamw_lr=0.05))):
        for name, p in x.named_parameters():
            p.requires_grad_((name in LATE) == (x is late))
        train(x, steps, optimizer(x, **SETTINGS, **settings))
    assert [g["lr"] for g in one.param_groups] == [0.02, 0.01, 0.05, 0.05]
    assert one.last_report.step == 4
    for (name, p), q, r in zip(m.named_parameters(), rest.parameters(), late.parameters()):
        assert torch.equal(p, r if name in LATE else q), name
        assert int(one.state[p]["step"]) == (2 if name == "up.bias" else 4)


def over_ranks(rank, size, want):
    m = fsdp(Model())
    one = unfreeze(m)
    for name, p in m.named_parameters():
        same_part(name, p, want[name])
    # Only one rank passes an invalid parameter, and all ranks raise its error.
    for shape, dtype, match in (((2, 3, 4, 5), torch.float32, "with role="),
                                ((2, 3), torch.float16, "dtype float16")):
        bad = torch.nn.Parameter(torch.ones(shape, dtype=dtype) if rank == 1 else torch.ones(2, 3))
        with pytest.raises(muonrt.InvalidArgumentError, match=f"rank 1: .*{match}"):
            one.add_param_group({"params": [("bad", bad)]})
    train(m, [5], one)
    assert one.last_report.step == 5


def test_over_fsdp2():
    m = Model()
    unfreeze(m)
    on_gloo(2, over_ranks, {name: full(p) for name, p in m.named_parameters()})


def lone(m):
    """Returns an optimizer for two of the parameters after one step, and all parameters."""
    pairs = list(m.named_parameters())
    one = muonrt.torch.Muon(pairs[:2], **SETTINGS)
    train(m, [0], one)
    return one, pairs


def test_a_rejected_group_leaves_the_optimizer_unchanged():
    m, n = Model(), Model()
    one, other = lone(m)[0], lone(n)[0]
    deep = torch.nn.Parameter(torch.ones(2, 3, 4, dtype=torch.float64))
    for bad, match in (({"params": [("again", m.up.weight)]}, "more than one parameter group"),
                       ({"params": [("deep", deep)], "role": "muon"}, "dtype float64"),
                       ({"params": [("f", m.norm.bias.detach())]}, "needs a gradient"),
                       ({"params": [m.norm.bias]}, "has no name"),
                       ({"lr": 1}, r"no 'params', only \['lr'\]"), ([], "is list; pass a dict"),
                       ({"params": [("m", m.down.weight)], "transposed": None},
                        "param 'm': transposed is None; pass a value of type bool")):
        with pytest.raises(muonrt.InvalidArgumentError, match=match):
            one.add_param_group(bad)
    train(m, [1], one)
    train(n, [1], other)
    assert len(one.param_groups) == 2 and one.state_dict()["state"].keys() == {0, 1}
    same_bits(m, n)


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_an_error_while_state_is_copied_changes_nothing(monkeypatch, error):
    def fails(*_):
        raise error

    one, pairs = lone(Model())
    states = {p: dict(state) for p, state in one.state.items()}
    monkeypatch.setattr("muonrt._torch_state.State.take_over", fails)
    with pytest.raises((muonrt.Error, KeyboardInterrupt)):
        one.add_param_group({"params": pairs[2:]})
    assert [len(g["params"]) for g in one.param_groups] == [1, 1] and len(one._names) == 2
    assert all(one.state[p][key] is tensor for p in states for key, tensor in states[p].items())
    assert one.param_groups[0]["steps"] == 1
    if error is MemoryError:
        one.step()
        assert one.last_report.step == 2
    else:
        with pytest.raises(muonrt.AbortedError, match="interrupted by a signal"):
            one.step()


def test_a_group_is_rejected_during_a_save(tmp_path, monkeypatch):
    one, pairs = lone(Model())
    reserved = one.save_reserve()
    one.save_begin(tmp_path)
    with pytest.raises(muonrt.InvalidStateError, match="call save_wait"):
        one.add_param_group({"params": pairs[2:]})
    one.save_wait()
    sizes, reserve = [], muonrt.Optimizer.save_reserve
    monkeypatch.setattr(muonrt.Optimizer, "save_reserve",
                        lambda core, **how: sizes.append(reserve(core, **how)))
    one.add_param_group({"params": pairs[2:]})
    assert len(sizes) == 1 and sizes[0] > reserved  # also for the new parameters
    one.close()
    with pytest.raises(muonrt.InvalidStateError, match="optimizer is closed"):
        one.add_param_group({"params": pairs[2:]})


def rates(*groups, **settings):
    """Checks the learning rates of Muon and of AdamW in each group. `groups` contains the names of
    the parameters."""
    named = dict(Model().named_parameters())
    entries = [g | {"params": [(n, named[n]) for n in g["params"]]} for g in groups]
    one = muonrt.torch.Muon(entries or named.items(), **settings)
    out = [(g["role"], g["lr"]) for g in one.param_groups]
    one.close()
    return out


UP, EMBED = {"params": ["up.weight", "up.bias"]}, {"params": ["embed.weight"]}
OTHER = {"scale_rule": "max_dim"}
RATES = [  # groups, settings, rates
    ([], {}, [3e-4, 3e-4]),
    ([], dict(lr=1e-3), [1e-3, 1e-3]),
    ([], dict(lr=1e-3, adamw_lr=2e-3), [1e-3, 2e-3]),
    ([], dict(lr=1e-3, adamw_lr=2e-3, muon=OTHER), [1e-3, 2e-3]),
    ([UP | {"lr": 1e-3}], {}, [1e-3, 1e-3]),
    ([UP | {"lr": 1e-3, "adamw_lr": 0.0}], dict(lr=1, adamw_lr=1), [1e-3, 0.0]),
    ([UP | {"lr": 1e-3, "adamw_lr": 2e-3}], dict(muon=OTHER), [1e-3, 2e-3]),
    ([UP | {"lr": 1e-3}], dict(adamw_lr=2e-3, muon=OTHER), [1e-3, 2e-3]),
    ([{"params": ["up.weight"]}, EMBED | {"role": "adamw", "lr": 2e-3}], dict(lr=1e-3, muon=OTHER),
     [1e-3, 2e-3]),
    # A preset has both learning rates of the original. If the scale rule is match_rms, a single
    # learning rate that the caller passes replaces both.
    ([], dict(preset="keller_jordan"), [0.02, 3e-4]),
    ([], dict(preset="keller_jordan", lr=0.05), [0.05, 3e-4]),
    ([], dict(preset="dmuon"), [0.02, 1e-3]),
    ([], dict(preset="moonlight", lr=3e-4), [3e-4, 3e-4])]


@pytest.mark.parametrize("groups, settings, want", RATES)
def test_one_rate_holds_for_both_halves_of_match_rms(groups, settings, want):
    assert rates(*groups, **settings) == list(zip(("muon", "adamw"), want))


def test_adamw_alone_takes_the_rate():
    assert rates(preset="adamw", lr=1e-3) == [("adamw", 1e-3)]
    assert rates({"params": ["up.weight"]}, lr=1e-3, muon=OTHER) == [("muon", 1e-3)]


@pytest.mark.parametrize("groups, group, param", [
    ([], 0, "embed.weight"), ([UP | {"lr": 0.02}], 0, "up.bias"),
    ([{"params": ["down.weight"]}, EMBED | {"lr": 0.02}], 1, "embed.weight")])
def test_another_scale_needs_a_rate_for_adamw(groups, group, param):
    with pytest.raises(muonrt.InvalidArgumentError,
                       match=f"group {group}: param '{param}' .* adamw_lr .* 0.02 .* 'max_dim'"):
        rates(*groups, lr=0.02, muon=OTHER)


def test_a_later_group_needs_a_rate_for_adamw():
    named = dict(Model().named_parameters())
    one = muonrt.torch.Muon([("up.weight", named["up.weight"])], lr=0.02, muon=OTHER)
    with pytest.raises(muonrt.InvalidArgumentError, match="'norm.weight' .* adamw_lr"):
        one.add_param_group({"params": [("norm.weight", named["norm.weight"])]})
    one.add_param_group({"params": [("norm.weight", named["norm.weight"])], "adamw_lr": 1e-3})
    assert [g["lr"] for g in one.param_groups] == [0.02, 1e-3]


@pytest.mark.parametrize("lr, change, names", [
    (0.2, {}, ["w"]), (0.02, {}, []), (0.2, {"weight": 0.0}, []), (0.2, {"grad": 0.0}, [])])
def test_the_first_step_warns_of_a_large_update(lr, change, names):
    p = torch.nn.Parameter(change.get("weight", 0.5) * torch.ones(6, 4))
    one = muonrt.torch.Muon([("w", p)], lr=lr)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for _ in range(3):
            p.grad = change.get("grad", 1.0) * torch.randn(6, 4)
            one.step()
    assert [str(w.message)[:9] for w in found] == [f"param '{n}'" for n in names]
    if names:
        # The update is 0.2 x 0.2 / 0.5 = 8% of the RMS. With a learning rate of 0.025, it would be
        # 1%.
        assert "by 8% of its RMS" in str(found[0].message)
        assert "instead of 0.2, such as 0.025, which" in str(found[0].message)


def test_the_flat_partitions_of_zero_are_named():
    one = muonrt.torch.Muon(Model())
    one.param_groups = [one.param_groups[0] | {"params": [torch.nn.Parameter(torch.zeros(64))]}]
    with pytest.raises(muonrt.InvalidStateError, match="flat partitions, use stage 0, or the ZeroClient of"):
        one.step()
