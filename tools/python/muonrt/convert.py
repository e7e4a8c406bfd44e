"""Converts optimizer checkpoints between muonrt, torch, Moonlight and microsoft/dion.

  python -m muonrt.convert IN... OUT [--to FORMAT] [--names FILE] [--model FILE] [--set KEY=VALUE]...

Each IN is a file of torch.save or a folder of torch.distributed.checkpoint (DCP) that contains state dicts of
optimizers at any depth (for torch: Muon's and AdamW's), or a .safetensors file of `muonrt state export --state`.
OUT is NAME.safetensors for `muonrt state import`, NAME.pt for torch.load, or else a DCP folder.
"""

import argparse
import ast
import json
import os
import pickle
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch

from muonrt import _safetensors
from muonrt._checkpoint_formats import KINDS, MUON, ADAMW, REFUSED, RULES, SETTINGS, STRUCTURE
from muonrt._torch_state import momentum_factor

PUBLISHED = {"muon": {"weight_decay": 0.1, "nesterov": True, "momentum_kind": "ema"},
             "adamw": {"weight_decay": 0.01, "betas": (0.9, 0.95), "eps": 1e-8}}
FORMAT = "muonrt step state 1"  # the format that tools/command/state/export.cpp writes
WITH_CHECKSUMS = "muonrt step state 2"  # as above, with checksums, which are not read


@dataclass
class Group:
    role: str
    names: list[str]
    settings: dict


class Checkpoint:
    """The content of a checkpoint: groups, step counts, and the state as {name: {kind: tensor}},
    with muonrt's kinds of state."""

    def __init__(self):
        self.groups: list[Group] = []
        self.state: dict[str, dict] = {}
        self.step = 0
        self.update_counts: dict[str, int] = {}  # only for parameters with a separate count

    def set_step(self, number, name: str | None = None) -> None:
        """Sets the number of steps of a parameter, or of all parameters."""
        self.step = max(self.step, int(number))
        if name is not None and self.update_counts.setdefault(name, int(number)) != int(number):
            raise ValueError(f"param '{name}' is at step {self.update_counts[name]} and at {int(number)}")

    def update_count_of(self, name: str) -> int:
        return self.update_counts.get(name, self.step)

    def add(self, name: str, state: dict) -> None:
        if name in self.state:
            raise ValueError(f"param '{name}' occurs twice; pass each parameter once")
        self.state[name] = state

    def change(self, changes: dict) -> None:
        """Applies the settings of --set. If momentum_kind changes, converts the momentum."""
        for group in self.groups:
            kind = group.settings.get("momentum_kind")
            of_adamw = {k.removeprefix("adamw."): v for k, v in changes.items() if "." in k}
            of_muon = {k: v for k, v in changes.items() if "." not in k and k != "momentum_kind"}
            group.settings.update(of_muon if group.role == "muon" else of_adamw)
            if kind and "momentum_kind" in changes:
                self.set_kind(group, changes["momentum_kind"])
            for key in ("lr", "momentum") if group.role == "muon" else ("lr",):
                if key not in group.settings:
                    prefix = "adamw." if group.role == "adamw" else ""
                    raise ValueError(f"the state has no {key}; pass --set {prefix}{key}=VALUE")

    def set_kind(self, group: Group, kind: str) -> None:
        factor = momentum_factor(group.settings["momentum_kind"], kind, group.settings["momentum"])
        group.settings["momentum_kind"] = kind
        if factor != 1:
            for name in group.names:
                momentum = self.state[name]["momentum"]
                self.state[name]["momentum"] = (momentum.float() * factor).to(momentum.dtype)


def find_all(value, predicate) -> list[dict]:
    """Searches nested dicts and lists, and returns all dicts that satisfy `predicate`."""
    if isinstance(value, dict) and predicate(value):
        return [value]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [found for item in inner for found in find_all(item, predicate)]


def load(path: Path):
    """Reads a file that torch.save wrote, or a folder that DCP wrote."""
    with tempfile.TemporaryDirectory() as folder:
        if path.is_dir():
            from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

            whole = Path(folder) / "whole.pt"
            dcp_to_torch_save(path, whole)
            path = whole
        return torch.load(path, map_location="cpu", weights_only=True)


def format_of(found: dict) -> str:
    if any("role" in group for group in found["param_groups"]):
        return "muonrt.torch"
    if any("algorithm" in group for group in found["param_groups"]):
        return "dion"
    moonlight = any("use_muon" in entry for entry in found["state"].values())
    return "moonlight" if moonlight else "torch"


def read_dict(out: Checkpoint, found: dict, names) -> None:
    """Adds an optimizer's state dict to `out`. `names` iterates over the names of parameters
    that have no name in the dict."""
    form = format_of(found)
    for group in found["param_groups"]:
        keys = list(group["params"])
        called = group.get("param_names") if not all(isinstance(k, str) for k in keys) else keys
        members = {"muon": [], "adamw": []}
        for i, key in enumerate(keys):
            name = called[i] if called else next(names, None)
            if name is None:
                raise ValueError(f"parameter {key} has no name; pass --names FILE with one name per line")
            entry = dict(found["state"].get(key, {}))
            role = group.get("role") or group.get("algorithm") or \
                ("muon" if entry.pop("use_muon", "momentum_buffer" in entry) else "adamw")
            out.add(name, read_entry(out, form, role, name, entry))
            members[role].append(name)
        out.set_step(group.get("steps", 0))
        step = group.get("step")  # Dion's groups have this key
        for role, named in members.items():
            if named:
                out.groups.append(Group(role, named, read_settings(form, role, group)))
            for name in named if step is not None else ():
                out.set_step(step, name)


def read_entry(out: Checkpoint, form: str, role: str, name: str, entry: dict) -> dict:
    kinds = KINDS[form].get(role)
    if kinds is None:
        raise ValueError(f"param '{name}': algorithm '{role}' cannot be converted; use muon or adamw")
    state = {}
    for key, value in entry.items():
        if key not in kinds:
            raise ValueError(f"param '{name}': unknown state '{key}'; {form} has {list(kinds)}")
        if type(value) is not torch.Tensor and kinds[key] != "step":
            raise ValueError(f"param '{name}': state '{key}' is a {type(value).__name__}, not a "
                             "whole tensor; save shards with torch.distributed.checkpoint")
        if kinds[key] == "step":
            out.set_step(value, name)
        else:
            # Other optimizers may store moments in the dtype of the gradients.
            state[kinds[key]] = value if form == "muonrt.torch" else value.float()
    needed = ("momentum", "variance") if role == "adamw" else ("momentum",)
    for key, kind in kinds.items():
        if kind in needed and kind not in state:
            raise ValueError(f"param '{name}': no state '{key}', perhaps because it never had a gradient; "
                             "save the state after a step that updates it")
    return state


def read_settings(form: str, role: str, group: dict) -> dict:
    group = dict(group)
    if form == "dion":
        group["betas"] = (group.pop("beta1"), group.pop("beta2"))
    theirs, rule = SETTINGS[form][role], RULES[form][role]
    either = SETTINGS[form]["muon"] | SETTINGS[form]["adamw"]
    for key, value in group.items():
        # A trainer may add its own settings to groups of muonrt.torch.
        if form != "muonrt.torch" and key not in {*theirs, *rule, *STRUCTURE}:
            raise ValueError(f"unknown setting '{key}' of a group of {form}")
        if key in REFUSED and value == REFUSED[key]:
            raise ValueError(f"{key}={value} is an update rule that muonrt's AdamW does not support")
        if key in rule and key not in either and value != rule[key]:
            print(f"note: {form} has {key}={value}, which is not part of the state", file=sys.stderr)
    kind = "heavy_ball" if form in ("moonlight", "dion") else "ema"
    settings = {"momentum_kind": kind} if role == "muon" else {}
    for key, ours in theirs.items():
        if key in group:  # a learning rate may be a tensor
            value = group[key]
            settings[ours] = value.item() if isinstance(value, torch.Tensor) else value
    return settings


def read_file(out: Checkpoint, path: Path) -> None:
    """Adds the content of a file that `muonrt state export --state` wrote to `out`."""
    tensors, metadata = _safetensors.read(path)
    if metadata.get("format") not in (FORMAT, WITH_CHECKSUMS):
        raise ValueError(f"{path}: the format is {metadata.get('format')!r}, but must be '{FORMAT}'")
    out.set_step(tensors.pop("step"))
    states: dict[str, dict] = {}
    for key, value in tensors.items():
        kind, _, name = key.partition("/")
        if kind == "updates":
            out.set_step(value, name)
            continue
        if kind not in ("momentum", "variance", "normuon", "master"):
            raise ValueError(f"{path}: tensor '{key}': unknown state '{kind}'")
        states.setdefault(name, {})[kind] = value
    groups = [Group(**g) for g in json.loads(metadata.get("groups", "[]"))]
    for group in groups:
        if "betas" in group.settings:
            group.settings["betas"] = tuple(group.settings["betas"])
    if not groups:  # only `muonrt state export` writes files without groups
        by_kind: dict[str, list] = {}
        for name in states:
            by_kind.setdefault(metadata[f"momentum/{name}"], []).append(name)
        groups = [Group("adamw", named, {}) if kind == "adamw" else
                  Group("muon", named, {"momentum_kind": kind}) for kind, named in by_kind.items()]
    out.groups += groups
    for group in groups:
        for name in group.names:
            out.add(name, states[name])


def write_file(ck: Checkpoint, path: Path) -> None:
    tensors = {"step": torch.tensor(ck.step, dtype=torch.int64)}
    metadata = {"format": FORMAT, "groups": json.dumps([vars(g) for g in ck.groups])}
    for group in ck.groups:
        for name in group.names:
            metadata[f"momentum/{name}"] = group.settings.get("momentum_kind", "adamw")
            tensors |= {f"{kind}/{name}": value for kind, value in ck.state[name].items()}
            if group.role == "adamw":
                tensors[f"updates/{name}"] = torch.tensor(ck.update_count_of(name), dtype=torch.int64)
    _safetensors.write(path, tensors, metadata)


def write_dict(ck: Checkpoint, form: str, groups: list[Group], by_name: bool) -> dict:
    """Returns a state dict of `groups`. If `by_name` is set, its keys are names; otherwise they are
    numbers, as in Optimizer.state_dict()."""
    out = {"state": {}, "param_groups": []}
    for group in groups:
        keys = group.names if by_name else \
            list(range(len(out["state"]), len(out["state"]) + len(group.names)))
        settings = {} if form == "moonlight" else dict(RULES[form][group.role])
        values = PUBLISHED[group.role] | group.settings
        settings |= {key: values[ours] for key, ours in SETTINGS[form][group.role].items()}
        settings |= {"params": keys, "param_names": group.names}
        if form == "muonrt.torch":
            settings |= {"role": group.role, "steps": ck.step}
        if form == "dion":
            settings["beta1"], settings["beta2"] = settings.pop("betas")
            settings |= {"algorithm": group.role, "step": one_step(ck, group)}
        out["param_groups"].append(settings)
        for key, name in zip(keys, group.names):
            out["state"][key] = write_entry(ck, form, group.role, name)
    if form == "moonlight":
        out["param_groups"] = [one_group(out["param_groups"])]
    return out


def write_entry(ck: Checkpoint, form: str, role: str, name: str) -> dict:
    have = dict(ck.state[name])
    if form in ("torch", "moonlight") and role == "muon" and have["momentum"].ndim != 2:
        raise ValueError(f"param '{name}' has {have['momentum'].ndim} dimensions; "
                         f"Muon of {form} supports only matrices")
    if form != "muonrt.torch":
        have.pop("master", None)  # the other optimizers have no master weights
    count = ck.update_count_of(name)
    number = count if form == "moonlight" else torch.tensor(float(count))
    out = {"use_muon": role == "muon"} if form == "moonlight" else {}
    for key, kind in KINDS[form][role].items():
        if kind == "step":
            out[key] = number
        elif kind in have:
            out[key] = have.pop(kind)
    if have:
        raise ValueError(f"param '{name}': {form} cannot store the state {sorted(have)}")
    return out


def one_step(ck: Checkpoint, group: Group) -> int:
    """Returns the step count of a group, for Dion, whose state has one count for each group."""
    if group.role == "muon":
        return ck.step
    counts = {ck.update_count_of(name): name for name in group.names}
    if len(counts) > 1:
        listed = ", ".join(f"'{name}' has {n} updates" for n, name in counts.items())
        raise ValueError(f"{listed}, but Dion has one count for the parameters of a group")
    return next(iter(counts))


def one_group(groups: list[dict]) -> dict:
    """Combines all groups into one, with Muon's parameters first, because Moonlight has a single
    group."""
    out: dict = {}
    for group in sorted(groups, key=lambda g: "momentum" not in g):
        for key, value in group.items():
            if key in ("params", "param_names"):
                out[key] = out.get(key, []) + value
            elif out.setdefault(key, value) != value:
                raise ValueError(f"Moonlight has one {key} for all parameters, but the state has "
                                 f"{out[key]} and {value}; make them equal with --set")
    return RULES["moonlight"]["muon"] | RULES["moonlight"]["adamw"] | out


def take_model(ck: Checkpoint, path: Path, masters: bool) -> None:
    """Checks that the shapes agree with those in the model. If `masters` is set, copies the model's
    bf16 parameters to master weights."""
    whole = _safetensors.read(path)[0] if path.suffix == ".safetensors" else load(path)
    models = find_all(whole, lambda d: all(name in d for name in ck.state))
    if not models:
        raise ValueError(f"{path} has no dict with all of {list(ck.state)}")
    for name, state in ck.state.items():
        param = models[0][name].detach()
        if param.shape != state["momentum"].shape:
            raise ValueError(f"param '{name}': the state has shape {tuple(state['momentum'].shape)}, but "
                             f"the model has {tuple(param.shape)}; pass the model of this state")
        if masters and param.dtype == torch.bfloat16:
            state.setdefault("master", param.float())


def convert(inputs: list[Path], output: Path, to: str | None = None, names: Path | None = None,
            model: Path | None = None, changes: dict | None = None) -> Checkpoint:
    """Implements the command. If it cannot convert a checkpoint, raises ValueError and writes
    nothing."""
    if output.exists():
        raise ValueError(f"{output} already exists; use another name")
    is_file = output.suffix == ".safetensors"
    if is_file and to:
        raise ValueError("a .safetensors file has muonrt's format; omit --to")
    form, ck = to or "muonrt.torch", Checkpoint()
    lines = names.read_text().splitlines() if names else []
    left = iter(lines)
    for path in inputs:
        if path.suffix == ".safetensors":
            read_file(ck, path)
            continue
        found = find_all(load(path), lambda d: {"state", "param_groups"} <= set(d))
        if not found:
            raise ValueError(f"{path} has no state of an optimizer, a dict with 'state' and "
                             "'param_groups'; pass a file or folder that has one")
        for one in found:
            read_dict(ck, one, left)
    if more := list(left):
        raise ValueError(f"{names} has {len(more)} names more than the state has parameters; remove them")
    ck.change(changes or {})
    if model:
        take_model(ck, model, is_file)
    if form != "muonrt.torch":
        for group in ck.groups:
            if group.role == "muon":
                ck.set_kind(group, "ema" if form == "torch" else "heavy_ball")
    by_name = output.suffix not in (".pt", ".pth")
    if form == "torch" and not by_name:
        whole = {role: write_dict(ck, form, found, by_name) for role in ("muon", "adamw")
                 if (found := [g for g in ck.groups if g.role == role])}
    elif not is_file:
        whole = {"optimizer": write_dict(ck, form, ck.groups, by_name)}
    scratch = output.with_name(f"{output.name}.tmp{os.getpid()}")
    if is_file:
        write_file(ck, scratch)
    elif by_name:
        import torch.distributed.checkpoint as dcp

        dcp.save(whole, checkpoint_id=scratch, no_dist=True)
    else:
        torch.save(whole, scratch)
    scratch.replace(output)
    return ck


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m muonrt.convert", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="+", type=Path, metavar="IN... OUT", help="inputs, and the new output")
    parser.add_argument("--to", choices=sorted(KINDS), help="default: muonrt.torch; not with a .safetensors OUT")
    parser.add_argument("--names", type=Path, help="names of parameters, one per line, in the "
                        "optimizers' order, if an optimizer was created without named_parameters()")
    parser.add_argument("--model", type=Path, help="the model's checkpoint, whose shapes are compared; "
                        "a .safetensors OUT gets master weights from its bf16 parameters")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE",
                        help="sets a value in all groups: lr=0.02, momentum=0.95, adamw.lr=3e-4; "
                        "momentum_kind=heavy_ball or ema also converts the momentum")
    args = parser.parse_args(arguments)
    if len(args.paths) < 2:
        parser.error("pass IN and OUT")
    known = list(MUON) + ["momentum_kind"] + [f"adamw.{k}" for k in ADAMW]
    changes = {}
    try:
        for key, _, value in (text.partition("=") for text in args.set):
            if key not in known:
                parser.error(f"--set {key}: unknown setting; use one of {', '.join(known)}")
            changes[key] = value if key == "momentum_kind" else ast.literal_eval(value)
        ck = convert(args.paths[:-1], args.paths[-1], args.to, args.names, args.model, changes)
    except (ValueError, OSError, pickle.UnpicklingError) as error:
        print(f"muonrt.convert: {error}", file=sys.stderr)
        return 1
    counts = {role: sum(len(g.names) for g in ck.groups if g.role == role)
              for role in ("muon", "adamw")}
    print(f"{args.paths[-1]}: step {ck.step}, {counts['muon']} parameters of Muon, "
          f"{counts['adamw']} of AdamW")
    return 0


if __name__ == "__main__":
    sys.exit(main())
