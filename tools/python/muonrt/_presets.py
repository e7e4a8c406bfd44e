"""The published optimizers of tools/optimizers, in the words of muonrt.Group."""

import json
import warnings
from importlib import resources

import muonrt

RENAMED = {"scale": "scale_rule", "method": "form"}
DTYPES = {"f32": "float32", "bf16": "bfloat16", "f16": "float16"}
# Not of a group: `precision` spares memory alone (muonrt.torch keeps f32 masters of bf16).
ELSEWHERE = ("name", "role", "precision", "momentum_schedule")


def names() -> list[str]:
    """What preset= takes."""
    files = resources.files("muonrt").joinpath("presets").iterdir()
    return sorted(f.name.removesuffix(".json") for f in files if f.name.endswith(".json"))


def preset(name: str) -> dict[str, dict]:
    """Settings by role; without "muon" where all parameters get AdamW."""
    if name not in names():
        raise muonrt.InvalidArgumentError(
            f"preset is '{name}'; use one of {', '.join(names())}")
    text = resources.files("muonrt").joinpath("presets", f"{name}.json").read_text()
    rules = json.loads(text)["rules"]
    if any("qk_clip" in rule for rule in rules):
        raise muonrt.NotSupportedError(
            f"preset '{name}' clips by attention logits, which this adapter does not take")
    if any("momentum_schedule" in rule for rule in rules):
        warnings.warn(f"preset '{name}': its schedule of the momentum is yours to follow, by "
                      "param_groups", stacklevel=4)
    roles = {"matrix": "muon", "adamw": "adamw"}
    return {roles[rule["role"]]: _settings(rule) for rule in rules}


def _settings(rule: dict) -> dict:
    out = {}
    matrix = rule["role"] == "matrix"
    for key, value in rule.items():
        if key in ELSEWHERE:
            continue
        if key == "normuon":
            out |= {"normuon": value["axis"], "normuon_beta2": value["beta2"]}
        elif key == "blocks":
            rows, cols = value["grid"]
            out |= {"block_rows": rows, "block_cols": cols, "block_period": value["period"],
                    "block_lr_factor": value["lr_factor"]}
        elif key == "eps":
            out["normalize_eps"] = value
        elif key == "adam_eps":
            out["eps"] = value
        elif key == "betas":
            out["betas"] = tuple(value)
        elif key == "coefficients" and isinstance(value, list):
            custom = [number for triple in value for number in triple]
            out |= {"coefficients": "custom", "custom": custom, "steps": len(value)}
        else:
            word = DTYPES.get(value, value) if key.endswith("_dtype") else value
            out[RENAMED.get(key, key)] = word
    if matrix and out.get("row_scaling") == "aol":
        out.setdefault("coefficients", "aol")
    # Every list but the default has a number of steps of its own.
    if matrix and out.get("coefficients", "polar_express") != "polar_express":
        out.setdefault("steps", 0)
    return out
