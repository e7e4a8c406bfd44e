"""Tests the arguments of muonrt.torch.Muon: rejected arguments at creation, parameter names, and
types."""

import re

import pytest

torch = pytest.importorskip("torch")

from torch_models import Model  # noqa: E402

import muonrt  # noqa: E402
import muonrt.torch  # noqa: E402
from muonrt import _torch_arguments  # noqa: E402

BAD = muonrt.InvalidArgumentError



def matrix():
    return [("w", torch.nn.Parameter(torch.ones(2, 3)))]


@pytest.mark.parametrize("settings, error, words", [
    ({"rol": 3}, TypeError, "no 'rol'; pass 'role'"),
    ({"ns_steps": 5}, TypeError, "'ns_steps'; pass muon={'steps'"),
    ({"adjust_lr_fn": "original"}, TypeError, "'adjust_lr_fn'; pass muon={'scale_rule'"),
    ({"foreach": True}, TypeError, "'foreach'; omit it"),
    ({"mu": 0.9}, TypeError, "'mu'; pass momentum"),
    ({"adjust_lr": "rms_norm"}, TypeError, "match_rms"),
    ({"distributed_mesh": None}, TypeError, "omit it"),
    *(({key: value}, BAD, "^" + re.escape(f"{key} is {value!r}; pass a number from 0")) for key, value in [
        ("lr", -1), ("lr", float("nan")), ("lr", float("inf")), ("lr", True), ("lr", "0.1"), ("lr", b"1"),
        ("adamw_lr", "1"), ("adamw_lr", False), ("weight_decay", -1.0), ("weight_decay", True),
        ("adamw_weight_decay", "0"), ("momentum", 1.5), ("momentum", True), ("momentum", 1 - 1e-9),
        ("eps", -1), ("eps", "1e-8"), ("eps", 2e30)]),
    ({"lr": torch.tensor(True)}, BAD, r"^lr is tensor\(True\)"),
    ({"eps": 1e-40}, BAD, "^eps is 1e-40, which vanishes"),
    ({"betas": (0.9, 1.0)}, BAD, r"^betas\[1\] is 1.0; pass a number from 0 and below 1"),
    ({"betas": (True, 0.9)}, BAD, r"^betas\[0\] is True"),
    ({"betas": 0.9}, BAD, "^betas is 0.9; pass a pair"),
    ({"betas": (0.9,)}, BAD, "^betas is .*; pass a pair"),
    ({"nesterov": "no"}, BAD, "^nesterov is 'no'; pass True or False"),
    *(({"muon": {key: value}}, BAD, f"{key} is {value!r}; pass a {kind}") for key, value, kind in [
        ("steps", True, "whole number"), ("steps", "5", "whole number"), ("steps", 2.5, "whole number"),
        ("scale_factor", True, "number"), ("scale_factor", "0.2", "number"), ("renormalize", "no", "bool")]),
    ({"window": True}, BAD, "window is True; pass a whole number"),
    ({"clip_norm": "1"}, BAD, "clip_norm is '1'; pass a number"),
    ({"graphs": "no"}, BAD, "graphs is 'no'; pass a bool"),
    ({"muon": {"momentum": 0.9}}, TypeError, "^muon has 'momentum'; pass momentum="),
    ({"adamw": {"adamw_eps": 1e-6}}, TypeError, "^adamw has 'adamw_eps'; pass eps="),
    ({"adamw": {"beta2": 0.9}}, TypeError, "^adamw has 'beta2'; pass betas="),
    ({"process_group": "dp"}, BAD, "process_group"),
    ({"process_group": object()}, BAD, "process_group"),
    ({"comm": 3}, BAD, "comm is int"),
    ({"comm": muonrt.Comm.self, "process_group": object()}, BAD, "both set")])
def test_arguments_are_checked_at_the_creation(settings, error, words):
    with pytest.raises(error, match=words):
        if callable(settings.get("comm")):
            settings = settings | {"comm": settings["comm"]()}
        muonrt.torch.Muon(matrix(), **settings)


@pytest.mark.parametrize("params, error, words", [
    ([], BAD, "no parameter that needs a gradient"),
    (matrix()[0][1], BAD, "params is one tensor"),
    ([{"params": {matrix()[0]}}], BAD, "a set"),
    ([{"params": matrix(), "ns_steps": 5}], TypeError, "a group has no 'ns_steps'"),
    ([{"params": matrix(), "momentums": 5}], TypeError, "pass 'momentum'"),
    *(([{"params": matrix(), key: value}], BAD, words) for key, value, words in [
        ("lr", "0.1", "group 0: lr is '0.1'; pass a number"), ("lr", True, "lr is True"),
        ("lr", None, r"lr of the group of 'w' \(muon\) is None"), ("adamw_lr", "1", "adamw_lr is '1'"),
        ("weight_decay", True, "weight_decay is True"), ("momentum", "0.9", "momentum is '0.9'"),
        ("eps", -1, "eps is -1"), ("betas", (0.9, 2), r"betas\[1\] is 2"), ("nesterov", 2, "nesterov is 2")]),
    ([{"params": [matrix()[0][1]], "param_names": []}], BAD, "1 params, but 0 param_names"),
    ([matrix()[0][1]], BAD, "has no name.*param_names")])
def test_parameters_are_checked_at_the_creation(params, error, words):
    with pytest.raises(error, match=words):
        muonrt.torch.Muon(params)


def test_names_of_parameters():
    m = Model()
    names = [n for n, _ in m.named_parameters()]
    torchtitan = {"params": list(m.parameters()), "param_names": names}
    for params in (m, m.named_parameters(), m.parameters(), list(m.parameters()), [torchtitan],
                   torch.compile(m).named_parameters(), [{"params": m.parameters()}],
                   [{"params": [p]} for p in m.parameters()]):
        one = muonrt.torch.Muon(params)
        assert sorted(one._names) == sorted(names)
        assert {n: id(p) for n, p in zip(one._names, one._params)} == {
            n: id(p) for n, p in m.named_parameters()}


def test_version():
    assert muonrt.__version__ == muonrt.version()


def test_options_are_typed(tmp_path):
    signature = muonrt.Optimizer.__init__.__nb_signature__[0][0].split("*,")[1]
    assert {*_torch_arguments.Options.__annotations__} == {*re.findall(r"(\w+): ", signature)}
    mypy = pytest.importorskip("mypy.api")
    (tmp_path / "use.py").write_text(
        "import torch, muonrt, muonrt.torch\nm = torch.nn.Linear(2, 3)\n"
        "muonrt.torch.Muon(m.named_parameters(), lr=1e-3, clip_norm=1.0, threads=2)\n"
        "muonrt.torch.Muon(m.named_parameters(), rol=3)\n"
        "muonrt.torch.Muon(m.named_parameters(), threads='x')\n"
        "muonrt.Group('muon', momentun=0.9)\nmuonrt.Group('muon', momentum=0.9)\n"
        "def assign(info: muonrt.AssignInfo) -> int: return info.index % info.world\n"
        "def move(name: str, owner: int, a, b) -> None: pass\n"
        "muonrt.torch.Muon(m, assign=assign, gather=move, redistribute=move, prefetch_count=2)\n"
        "muonrt.torch.Muon(m, assign=lambda info: info.name)\n"
        "muonrt.torch.Muon(m, gather=assign)\n"
        "muonrt.Mesh.from_groups({'tp': [0, 1]})\n")
    (tmp_path / "mypy.ini").write_text("[mypy]\nfollow_imports = silent\n"
                                       "[mypy-torch.*,numpy.*]\nfollow_imports = skip\n")
    out, err, _ = mypy.run([str(tmp_path / "use.py"), f"--cache-dir={tmp_path}",
                            f"--config-file={tmp_path}/mypy.ini"])
    found = [int(line.split(":")[1]) for line in out.splitlines() if ": error:" in line]
    assert sorted(set(found)) == [4, 5, 6, 11, 12, 13], out + err


@pytest.mark.parametrize("group, key, value", [
    (0, "lr", "0.1"), (0, "lr", True), (0, "momentum", True), (0, "nesterov", "x"), (0, "weight_decay", "1"),
    (1, "eps", -1.0), (1, "betas", (0.9, 1.0)), (1, "lr", None), (1, "weight_decay", True)])
def test_settings_are_checked_at_each_step(group, key, value):
    m = Model()
    one = muonrt.torch.Muon(m, lr=1e-3)
    before = [p.detach().clone() for p in m.parameters()]
    for p in m.parameters():
        p.grad = torch.ones_like(p)
    g = one.param_groups[group]
    g[key], kept = value, g[key]
    where = rf"{key}(\[1\])? of the group of '{g['param_names'][0]}' \({g['role']}\) is "
    with pytest.raises(BAD, match=where):
        one.step()
    assert all(torch.equal(p, q) for p, q in zip(m.parameters(), before))
    g[key] = kept
    one.step()
    assert not any(torch.equal(p, q) for p, q in zip(m.parameters(), before))
