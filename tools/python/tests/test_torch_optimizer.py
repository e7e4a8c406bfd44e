"""Tests muonrt.torch.Muon as a torch.optim.Optimizer: parameters, state and groups that a trainer
changes, schedulers, hooks and arguments."""

import copy
import os
import pickle
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from test_torch import muon  # noqa: E402
from torch_models import (  # noqa: E402
    Model,
    drawn,
    fsdp,
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
from muonrt import _torch_arguments  # noqa: E402

BAD, STATE = muonrt.InvalidArgumentError, muonrt.InvalidStateError
HALF = torch.bfloat16


# Parameters


def replaced_in_groups(m, one):
    """Like accelerate, gives the model and the groups new parameters with the same values."""
    new = {id(p): torch.nn.Parameter(p.detach().clone()) for p in m.parameters()}
    for group in one.param_groups:
        group["params"] = [new[id(p)] for p in group["params"]]
    for module in m.modules():
        for key, p in list(module._parameters.items()):
            module._parameters[key] = new[id(p)]


def assigned(m, one):
    m.load_state_dict({k: v.clone() for k, v in m.state_dict().items()}, assign=True)


def moved(m, one):
    for p in m.parameters():
        p.data = p.data.clone()


def compiled(m, one):
    torch.compile(m)


@pytest.mark.parametrize("change", [replaced_in_groups, assigned, moved, compiled])
@pytest.mark.parametrize("dtype", [torch.float32, HALF])
def test_replaced_parameters_are_bound(change, dtype):
    m, still = two_layers(dtype), two_layers(dtype)
    one, other = muon(m), muon(still)
    for step in range(4):
        train(m, [step], one)
        train(still, [step], other)
        if step in (0, 2):
            change(m, one)
    same_bits(m, still)
    assert {id(p) for p in one.state} == {id(p) for p in m.parameters()}
    assert [g["steps"] for g in one.param_groups] == [4, 4]


def test_parameters_that_cannot_be_bound_are_rejected():
    m = two_layers()
    one = muon(m)
    train(m, [0], one)
    group, weight = one.param_groups[0], m[0].weight
    for changed, error, words in (
            ([torch.nn.Parameter(torch.ones(1)), m[2].weight], BAD, r"'0.weight'.*shape \(1,\).*ZeroClient"),
            ([torch.nn.Parameter(weight.detach().to(HALF)), m[2].weight], BAD, "'0.weight'.*bfloat16"),
            ([weight], STATE, r"have \[1, 2\] parameters, but \[2, 2\]"),
            ([], STATE, r"have \[0, 2\]")):
        group["params"] = changed
        for call in (one.step, one.state_dict, lambda: one.load_state_dict({})):
            with pytest.raises(error, match=words):
                call()
    group["params"] = [weight, m[2].weight]
    with torch.no_grad():
        m.load_state_dict({k: v.to(HALF) for k, v in m.state_dict().items()}, assign=True)
    one.zero_grad()
    m(drawn(0, 4, 12).to(HALF)).sum().backward()
    with pytest.raises(BAD, match="'0.weight' was replaced.*bfloat16"):
        one.step()


def test_a_step_without_any_gradient_is_an_error():
    m = two_layers()
    one = muonrt.torch.Muon(list(m.named_parameters()))  # muonrt does not get the model
    train(m, [0], one)
    m[0].bias.grad = None
    one.step()
    assigned(m, one)
    one.zero_grad()
    m(drawn(0, 4, 12)).sum().backward()
    with pytest.raises(STATE, match="none of the 4 parameters has a gradient on any rank"):
        one.step()
    assert [int(one.state[p]["step"]) for g in one.param_groups for p in g["params"]] == [2, 2, 1, 2]
    assert one._core.steps == 2 and one._core.update_counts[2:] == [1, 2]


def created_before_fully_shard(rank, size, want):
    m = Model()
    one = optimizer(m)
    fsdp(m)
    for p in m.parameters():
        p.grad = None
    train(m, range(3), one)
    for name, p in m.named_parameters():
        same_part(name, p, want[name])
    group = torch.distributed.new_group([1 - rank], use_local_synchronization=True)
    with pytest.raises(BAD, match=f"process_group.*rank {rank}"):
        muonrt.torch.Muon(m.named_parameters(), process_group=group)


def test_created_before_fully_shard():
    on_gloo(2, created_before_fully_shard, one_rank()[0])


@pytest.mark.parametrize("where", ["created", "step", "save"])
def test_a_world_of_one_rank_that_was_meant_to_be_larger(where, monkeypatch, tmp_path):
    m = two_layers()
    if where == "created":
        monkeypatch.setenv("RANK", "0")
        monkeypatch.setenv("WORLD_SIZE", "2")
        with pytest.raises(STATE, match="WORLD_SIZE is 2, but.*init_process_group"):
            muon(m)
        return muon(m, comm=muonrt.Comm.self()).close()
    one, alone = muon(m), muon(two_layers(), comm=muonrt.Comm.self())
    inject(m, 0)
    monkeypatch.setattr(_torch_arguments.dist, "is_initialized", lambda: True)
    monkeypatch.setattr(_torch_arguments.dist, "get_world_size", lambda: 2)
    alone.save(tmp_path / "a")
    with pytest.raises(STATE, match="before init_process_group.*the world has 2"):
        one.step() if where == "step" else one.save(tmp_path / "b")


def test_channels_last_and_other_strides():
    def convolution(changes):
        torch.manual_seed(0)
        m = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.Flatten(), torch.nn.Linear(32, 5))
        if changes:
            m.to(memory_format=torch.channels_last)
            m[2].weight.data = m[2].weight.data.t().contiguous().t()
        return m, muonrt.torch.Muon(m.named_parameters(), role=lambda name, p: (
            "muon", "flatten") if p.ndim == 4 else None)

    (m, one), (plain, other) = convolution(True), convolution(False)
    strides = [p.stride() for p in m.parameters()]
    for step in range(3):
        train(m, [step], one)
        train(plain, [step], other)
        if step == 1:  # written by the caller
            for x in (m, plain):
                with torch.no_grad():
                    x[0].weight.mul_(0.5)
    same_bits(m, plain)
    assert strides == [p.stride() for p in m.parameters()] != [p.stride() for p in plain.parameters()]


def test_a_sparse_gradient_is_rejected_by_name():
    m = torch.nn.Sequential(torch.nn.Embedding(5, 4, sparse=True), torch.nn.Linear(4, 3))
    one = muon(m, role=lambda name, p: "adamw")
    m(torch.tensor([1, 2])).sum().backward()
    with pytest.raises(BAD, match=r"'0.weight': the gradient has layout torch.sparse_coo"):
        one.step()


@pytest.mark.parametrize("write", [
    lambda m: m.load_state_dict({k: v + 1 for k, v in m.state_dict().items()}),
    lambda m: m[0].bias.copy_(m[0].bias + 1),
    lambda m: [p.data.copy_(p.data + 1) for p in m.parameters()],
    lambda m: m[0].weight.data.view(torch.int16)[3, 4].bitwise_xor_(1),
    lambda m: m.load_state_dict({k: v + 1 for k, v in m.state_dict().items()}, assign=True)])
def test_weights_that_were_written_are_not_lost(write):
    m = two_layers(HALF)
    one = muon(m)
    train(m, range(2), one)
    with torch.no_grad():
        write(m)
    inject(m, 2)
    written = [p.detach().clone() for p in m.parameters()]
    for _ in range(2):
        with pytest.raises(BAD, match=r"; call optimizer.reset_masters\(\) after"):
            one.step()
        assert all(torch.equal(p, q) for p, q in zip(m.parameters(), written))
    one.reset_masters()
    one.step()
    assert one.last_report.step == 3


# Tests of schedulers, groups and hooks.


@pytest.mark.parametrize("preset", [None, "adamw"])
def test_schedulers_with_their_defaults(preset):
    cycle = torch.optim.lr_scheduler
    for make in (lambda o: cycle.OneCycleLR(o, max_lr=0.01, total_steps=10),
                 lambda o: cycle.CyclicLR(o, base_lr=0.001, max_lr=0.01, step_size_up=2)):
        m = two_layers()
        one = muon(m, preset=preset)
        schedule, seen = make(one), set()
        for step in range(4):
            train(m, [step], one)
            group = one.param_groups[0]
            seen.add(group["betas"][0] if preset else group["momentum"])
            schedule.step()
        assert len(seen) > 2
        key = "beta1" if preset else "momentum"
        assert one._sent[0][key] in seen


def test_entries_of_the_trainer_in_groups():
    def made():
        m = two_layers()
        pairs = list(m.named_parameters())
        return m, muonrt.torch.Muon([
            {"params": pairs[:2], "name": "first", "lr_scale": 0.5, "lr": 0.01, "adamw_lr": 0.002},
            {"params": pairs[2:], "name": "last", "weight_decay": 0.0, "adamw_weight_decay": 0.5}],
            lr=0.3, adamw_lr=0.02)

    m, one = made()
    assert [(g["name"], g["role"], g["lr"], g["weight_decay"]) for g in one.param_groups] == [
        ("first", "muon", 0.01, 0.1), ("first", "adamw", 0.002, 0.01),
        ("last", "muon", 0.3, 0.0), ("last", "adamw", 0.02, 0.5)]
    torch.optim.lr_scheduler.LambdaLR(one, lambda step: 1.0)
    one.param_groups[1]["later"] = "kept"
    one.state[m[0].weight]["mine"] = torch.arange(3)
    _, other = made()
    other.load_state_dict(one.state_dict())
    assert [g.get("initial_lr") for g in other.param_groups] == [0.01, 0.002, 0.3, 0.02]
    assert other.param_groups[1]["later"] == "kept" and other.param_groups[0]["lr_scale"] == 0.5
    assert other.state[other.param_groups[0]["params"][0]]["mine"].tolist() == [0, 1, 2]


def test_hooks_of_load_state_dict():
    m = two_layers()
    one, called = muon(m, lr=0.1), []
    state = one.state_dict()
    one.register_load_state_dict_pre_hook(lambda o, s: s | {"param_groups": [
        g | {"lr": 0.25} for g in s["param_groups"]]})
    one.register_load_state_dict_post_hook(lambda o: called.append(o.param_groups[0]["lr"]))
    one.register_state_dict_post_hook(lambda o, s: s | {"extra": 1})
    one.load_state_dict(state)
    assert called == [0.25] and one.state_dict()["extra"] == 1


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_copies_are_refused(copied):
    with pytest.raises(TypeError, match="cannot be copied or pickled.*state_dict"):
        copied(muon(two_layers()))


# State


def offloaded(one):
    """Moves the state to other memory and back, like a trainer that offloads state between
    steps."""
    for entries in one.state.values():
        for key, value in entries.items():
            entries[key] = value.clone()


def whole_dicts(one):
    for p, entries in list(one.state.items()):
        one.state[p] = {key: value.clone() for key, value in entries.items()}


def data_moved(one):
    for entries in one.state.values():
        for value in entries.values():
            value.data = value.data.clone()


def attribute(one):
    one.state = {p: dict(entries) for p, entries in one.state.items()}


@pytest.mark.parametrize("change", [offloaded, whole_dicts, data_moved, attribute])
def test_state_that_a_trainer_has_replaced(change):
    m, still = two_layers(HALF), two_layers(HALF)
    one, other = muon(m), muon(still)
    for step in range(3):
        train(m, [step], one)
        train(still, [step], other)
        change(one)
    same_bits(m, still)
    p = m[0].weight
    one.state[p]["momentum_buffer"] = torch.full_like(p, 2.0, dtype=torch.float32)
    one.state[m[0].bias]["step"] = torch.tensor(7.0)
    found = one.state_dict()["state"]
    assert found[0]["momentum_buffer"].eq(2).all() and one._core.update_counts == [3, 3, 7, 3]
    assert (one._core.state("0.weight", "momentum") == 2).all()
    one.state[p]["momentum_buffer"] = torch.ones(3)
    with pytest.raises(BAD, match=r"'0.weight': state 'momentum_buffer' has shape \(3,\)"):
        one.step()


def test_a_cleared_state_starts_again():
    m, new = two_layers(HALF), two_layers(HALF)
    one = muon(m)
    train(m, range(3), one)
    new.load_state_dict(m.state_dict())
    one.state.clear()
    other = muon(new)
    for step in range(2):
        train(m, [step], one)
        train(new, [step], other)
    same_bits(m, new)
    assert one._core.steps == 2 and one._core.update_counts == [2] * 4
    del one.state[m[0].bias]
    assert one.state_dict()["state"][2]["exp_avg"].eq(0).all()
    assert one._core.update_counts == [2, 2, 0, 2] and one._core.steps == 2


def broken(change):
    def apply(state):
        state = copy.deepcopy(state)
        change(state)
        return state
    return apply


@pytest.mark.parametrize("change, words", [
    (lambda s: s["state"][3].pop("exp_avg"), "'2.bias': the state has no 'exp_avg'"),
    (lambda s: s["state"][3].update(exp_avg=torch.ones(2)), "'2.bias'.*shape"),
    (lambda s: s["state"][3].update(exp_avg_sq=None), "'2.bias'.*NoneType"),
    (lambda s: s["state"][3].update(step="x"), "'2.bias': state 'step' is 'x'"),
    (lambda s: s["param_groups"][1].update(lr=-1.0), "lr of the group of '0.bias'.*-1"),
    (lambda s: s["param_groups"][1].update(betas=(2.0, 0.9)), r"betas\[0\] of the group of .0.bias. .adamw. is 2.0"),
    (lambda s: s["param_groups"].pop(), "groups of")])
def test_a_state_that_cannot_be_loaded_changes_nothing(change, words):
    m = two_layers()
    one = muon(m)
    train(m, range(2), one)
    state = copy.deepcopy(one.state_dict())
    train(m, [2], one)
    want = copy.deepcopy(one.state_dict())
    with pytest.raises(BAD, match=words):
        one.load_state_dict(broken(change)(state))
    have = one.state_dict()
    assert have["param_groups"] == want["param_groups"]
    for i, entries in want["state"].items():
        assert all(torch.equal(value, have["state"][i][key]) for key, value in entries.items())


BACKWARD = """
import torch, muonrt.torch
m = torch.nn.Linear(4, 4)
held = {p: muonrt.torch.Muon([(n, p)]) for n, p in m.named_parameters()}
def hook(p):
    held[p].step()
    held[p].zero_grad()
for p in m.parameters():
    p.register_post_accumulate_grad_hook(hook)
for _ in range(2):
    m(torch.ones(2, 4)).sum().backward()
print([int(o.last_report.step) for o in held.values()])
"""


def test_an_optimizer_in_the_backward_pass_leaves_nothing():
    ran = subprocess.run([sys.executable, "-c", BACKWARD], capture_output=True, text=True,
                         env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)})
    assert ran.stdout.split() == ["[2,", "2]"] and "leak" not in ran.stderr, ran.stderr
    assert ran.returncode == 0
