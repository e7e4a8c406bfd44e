"""Converts the published optimizers in tools/optimizers to settings of muonrt.Group."""

import json
import warnings
from importlib import resources

import muonrt

DTYPES = {"f32": "float32", "bf16": "bfloat16", "f16": "float16"}
# Keys of a rule that are not settings of a group. `master_kind` is ignored because it affects only
# memory use: muonrt.torch keeps float32 master weights for bfloat16 parameters.
OTHER_KEYS = ("name", "role", "view", "master_kind", "momentum_schedule")


def names() -> list[str]:
    """Returns the names that `preset=` accepts."""
    files = resources.files("muonrt").joinpath("presets").iterdir()
    return sorted(f.name.removesuffix(".json") for f in files if f.name.endswith(".json"))


def preset(name: str, clips: bool = False) -> dict[str, dict]:
    """Returns the settings of each role. If AdamW updates all parameters, the role "muon" is
    missing.

    :param clips: whether the caller has set QK-clip.
    """
    if name not in names():
        raise muonrt.InvalidArgumentError(
            f"preset is '{name}'; use one of {', '.join(names())}")
    text = resources.files("muonrt").joinpath("presets", f"{name}.json").read_text()
    rules = json.loads(text)["rules"]
    if any("qk_clip" in rule for rule in rules) and not clips:
        raise muonrt.NotSupportedError(
            f"preset '{name}' uses QK-clip, which needs the sizes of the model; set "
            "qk_clip=muonrt.QkClip(heads=..., head_dim=...)")
    if any("momentum_schedule" in rule for rule in rules):
        warnings.warn(f"preset '{name}' has a schedule of the momentum, which muonrt.torch does not "
                      "run; set 'momentum' of param_groups in each step", stacklevel=4)
    return {rule["role"]: _settings(rule) for rule in rules}


def _settings(rule: dict) -> dict:
    out = {}
    is_muon = rule["role"] == "muon"
    for key, value in rule.items():
        if key in OTHER_KEYS:
            continue
        if key == "normuon":
            out |= {"normuon_axis": value["axis"], "normuon_beta2": value["beta2"]}
        elif key == "blocks":
            rows, cols = value["grid"]
            out |= {"block_rows": rows, "block_cols": cols, "block_period": value["period"],
                    "block_lr_factor": value["lr_factor"]}
        elif key == "adamw_eps":  # muonrt.torch.Muon uses torch's name
            out["eps"] = value
        elif key == "betas":
            out["betas"] = tuple(value)
        elif key == "coefficients" and isinstance(value, list):
            custom = [number for triple in value for number in triple]
            out |= {"coefficients": "custom", "custom": custom, "steps": len(value)}
        else:
            out[key] = DTYPES.get(value, value) if key.endswith("_dtype") else value
    if is_muon and out.get("row_scaling") == "aol":
        out.setdefault("coefficients", "aol")
    # For coefficients other than the default, 0 means the number of steps that was published with them.
    if is_muon and out.get("coefficients", "polar_express") != "polar_express":
        out.setdefault("steps", 0)
    return out
