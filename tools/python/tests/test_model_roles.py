"""Tests the roles of the parameters of real models, by name and by module, against the roles in
model_roles.jsonl, which were reviewed by hand.

Each line describes a model. "outputs" contains the sizes in its configuration, and "head" is its
output embedding. "params" contains the name, shape, module class and role of each parameter. The
class is followed by its torch.nn base class and, for a convolution, by the arguments of its
constructor. The role is one of the following: "muon" or "adamw", followed by the view of the tensor
if it has one; null if the parameter is frozen; or "= name" if the parameter is tied to another one.
If the role that follows from the name alone differs, it is the fifth entry. If the names of
parameters differ only by numbers, the line lists only one of them. Of the vectors, it lists only
those of norms."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

import muonrt

MODELS = [json.loads(line) for line in
          (Path(__file__).parent / "model_roles.jsonl").read_text().splitlines()]


def is_matrix(shape):
    return sum(n > 1 for n in shape) > 1


def test_there_are_many_models():
    assert len(MODELS) >= 40 and len({m["model"] for m in MODELS}) == len(MODELS)


@pytest.mark.parametrize("model", MODELS, ids=lambda m: m["model"])
def test_roles_by_name(model):
    wrong = []
    for name, shape, _, role, *by_name in model["params"]:
        if not role or role[0] == "=" or len(shape) > 1 and not is_matrix(shape):
            continue  # frozen, tied, or a vector that is stored as a matrix
        if len(shape) > 2 and shape[1] == 1 and role == "adamw":
            continue  # a depthwise convolution
        want = by_name[0] if by_name else role
        try:
            found = "/".join(v for v in muonrt.route(name, len(shape)) if v != "none")
        except muonrt.InvalidArgumentError:
            found = "refused"
        if found != "/".join(part for part in want.split("/") if part in
                             ("muon", "adamw", "stack", "flatten", "refused")):
            wrong.append((name, shape, "found", found, "expected", want))
    assert not wrong


def module_of(torch, shape, kind, leaf):
    """Returns a module of this class that has no parameters yet."""
    nn = torch.nn
    kind, *arguments = kind.split()
    name, _, base = kind.partition(":")
    base = getattr(nn, base or name, nn.Module)
    out = nn.Module.__new__(type(name, (base,), {}))
    nn.Module.__init__(out)
    for key, value in (a.split("=") for a in arguments):
        sizes = tuple(map(int, value.split(",")))
        setattr(out, {"kernel": "kernel_size"}.get(key, key), sizes[0] if key[-1] in "sd" else sizes)
    if hasattr(out, "groups") and leaf == "weight":
        out.in_channels = shape[1] * out.groups
    return out


def build(torch, model):
    """Builds a model that has the classes and shapes of the real model."""
    root, made = torch.nn.Module(), {}
    for name, shape, kind, role, *_ in model["params"]:
        at, (*path, leaf) = root, name.split(".")
        for i, part in enumerate(path):
            if part not in at._modules:
                last = i == len(path) - 1
                at.add_module(part, module_of(torch, shape, kind, leaf) if last else torch.nn.Module())
            elif i == len(path) - 1 and type(at._modules[part]) is torch.nn.Module:
                inner = at._modules[part]._modules  # an outer module that also has parameters
                at.add_module(part, module_of(torch, shape, kind, leaf))
                at._modules[part]._modules.update(inner)
            at = at._modules[part]
        made[name] = made[role[2:]] if role and role[0] == "=" else torch.nn.Parameter(
            torch.empty(shape, device="meta"), requires_grad=role is not None)
        at.register_parameter(leaf, made[name])
    root.config = SimpleNamespace(**model["outputs"])
    root.get_output_embeddings = lambda: root.get_submodule(model["head"]) if model["head"] else None
    return root


@pytest.mark.parametrize("model", MODELS, ids=lambda m: m["model"])
def test_roles_by_module(model):
    torch = pytest.importorskip("torch")
    from muonrt import _torch_roles as roles

    built = build(torch, model)
    role = roles.of_module(built, None)
    want = {row[0]: row[3] for row in model["params"] if row[3] and row[3][0] != "="}
    found = {}
    for name, p in built.named_parameters():
        if p.requires_grad:
            kind, settings = roles.role_of(name, p, None, role, {})
            assert settings.reason
            found[name] = "/".join(
                [kind] + ([settings["view"]] if "view" in settings else [])
                + (["transposed"] if settings.get("transposed") else [])
                + ([f"{len(settings['parts'])} parts"] if "parts" in settings else []))
    assert {n: (r, want[n]) for n, r in found.items() if r != want[n]} == {}
    assert found.keys() == want.keys()
