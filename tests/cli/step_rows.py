"""Every key and value of opt.json, each with what the textbook makes of it."""
import math
from dataclasses import dataclass, field

import step_files as files
import step_textbook as textbook

LR = 0.02
STEPS = 3
SHAPES = {"wq": [12, 8], "up": [6, 14], "experts": [3, 5, 4], "norm": [5], "fixed": [3]}
KJ = textbook.KELLER_JORDAN
MESHES = ("fsdp=2,tp=2", "fsdp=1,tp=3")
PLACEMENTS = ["S(0)", "S(1)"]


@dataclass
class Row:
    """A configuration and what it means. Keys: of opt.json, for all matrices, for wq alone, for
    AdamW, beside the rules. Settings: of the textbook, for all matrices, for wq alone, for AdamW."""
    what: str
    matrix: dict = field(default_factory=dict)
    wq: dict = field(default_factory=dict)
    adamw: dict = field(default_factory=dict)
    top: dict = field(default_factory=dict)
    muon: dict = field(default_factory=dict)
    muon_wq: dict = field(default_factory=dict)
    adam: dict = field(default_factory=dict)
    meshes: tuple = MESHES
    logits: list = None  # of layer 3, one list for each step
    tolerance: float = 3e-5  # f32: a few roundings, each grown by at most the slopes of a list
    like: str = ""    # the row with the same bits
    unlike: str = ""  # a row with other bits, where the textbook cannot tell them apart


def config(row):
    base = {"role": "matrix", "coefficients": "keller_jordan", "placements": PLACEMENTS,
            **row.matrix}
    rules = [{"name": "wq", **base, **row.wq}, {"name": "u?", **base},
             {"name": "e*", **base, "role": "stack"}, {"name": "fix[a-e]d", "role": "frozen"},
             {"name": "*", "role": "adamw", "placements": ["S(0)", "R"], **row.adamw}]
    for rule in rules[:3]:
        if any(key in row.wq for key in ("cuts", "row_bounds", "owner", "flat")):
            rule.pop("placements", None)
        if rule.get("coefficients") is None:
            rule.pop("coefficients", None)
    exact = {"transport_dtype": "f32", "iteration_dtype": "f32"}
    return {"defaults": {"lr": LR, **exact}, "rules": rules, **row.top}


def polar(**settings):
    return textbook.polar_express(**settings)


def coefficients():
    yield Row("keller_jordan")
    yield Row("you", {"coefficients": "you"}, muon={"coefficients": textbook.YOU})
    yield Row("polar_express", {"coefficients": "polar_express"},
              muon={"coefficients": polar(), "safety": 1.02})
    yield Row("polar_express, all its keys",
              {"coefficients": "polar_express", "steps": 7, "lower_bound": 0.01, "cushion": 0.05,
               "safety": 1.05, "safety_mode": "inner"},
              muon={"coefficients": polar(steps=7, lower_bound=0.01, cushion=0.05, safety=1.05),
                    "safety": 1.05})
    raw = polar(safety=1.0)
    yield Row("safety of the finished list",
              {"coefficients": "polar_express", "safety": 1.05, "safety_mode": "all"},
              muon={"coefficients": textbook.divided(raw, 1.05)})
    yield Row("safety of the input",
              {"coefficients": "polar_express", "safety": 1.03, "safety_mode": "none"},
              muon={"coefficients": raw, "safety": 1.03})
    yield Row("cans", {"coefficients": "cans", "steps": 6, "lower_bound": 0.02},
              muon={"coefficients": polar(steps=6, lower_bound=0.02, cushion=0, safety=1),
                    "safety": 1.02})
    yield Row("deepseek_v4", {"coefficients": "deepseek_v4"}, tolerance=1e-4,
              muon={"coefficients": textbook.DEEPSEEK_V4})
    yield Row("cubic", {"coefficients": "cubic"},
              muon={"coefficients": textbook.CUBIC, "safety": 1.02})
    yield Row("cans without safety", {"coefficients": "cans", "safety": 1},
              muon={"coefficients": polar(cushion=0, safety=1)})
    yield Row("cubic without safety", {"coefficients": "cubic", "safety": 1},
              muon={"coefficients": textbook.CUBIC})
    yield Row("polar_express as published",
              {"coefficients": "polar_express", "steps": 0, "safety": 0},
              muon={"coefficients": polar(), "safety": 1.02}, like="polar_express")
    yield Row("cubic as published", {"coefficients": "cubic", "steps": 0, "safety": 0},
              muon={"coefficients": textbook.CUBIC, "safety": 1.02}, like="cubic")
    yield Row("classical", {"coefficients": "classical", "steps": 9},
              muon={"coefficients": textbook.CLASSICAL[:1] * 9})
    own = [[2, -1.5, 0.5], [1.9, -1.3, 0.4], [2, -1.5, 0.5]]
    yield Row("own list", {"coefficients": own}, muon={"coefficients": own})


def iteration():
    yield Row("standard", {"method": "standard"}, like="keller_jordan")
    yield Row("auto", {"method": "auto"}, like="keller_jordan")  # all matrices are small
    yield Row("gram", {"method": "gram"}, unlike="standard")
    yield Row("gram, own restarts", {"method": "gram", "restarts": [1, 3]}, unlike="gram")
    yield Row("prescaled", {"normalize": "prescaled"}, like="keller_jordan")
    yield Row("add_eps", {"normalize": "add_eps", "eps": 0.5},
              muon={"normalize": "add_eps", "eps": 0.5})
    yield Row("max_eps", {"normalize": "max_eps", "eps": 7.0},
              muon={"normalize": "max_eps", "eps": 7.0})
    yield Row("aol", {"coefficients": None, "row_scaling": "aol"},
              muon={"coefficients": textbook.TURBO_MUON, "aol": True})
    yield Row("no row scaling", {"row_scaling": "none"}, like="keller_jordan")
    for form in ("standard", "gram"):
        yield Row(f"f32, {form}", {"method": form, "iteration_dtype": "f32"}, like=form)
        # Rounding of entries near 1 in every product, grown by the slopes of the list (numerics: the
        # worst of a bf16 iteration is 0.15), times the rate and scale of the largest matrix.
        yield Row(f"bf16, {form}", {"method": form, "iteration_dtype": "bf16"}, unlike=form,
                  tolerance=0.15 * LR * 0.2 * math.sqrt(14) * STEPS)
        yield Row(f"f16, {form}", {"method": form, "iteration_dtype": "f16"},
                  unlike=f"bf16, {form}", tolerance=0.15 / 8 * LR * 0.2 * math.sqrt(14) * STEPS)
    yield Row("bf16 transport", {"transport_dtype": "bf16"}, muon={"transport": files.bf16},
              unlike="keller_jordan", tolerance=2**-8 * LR * 0.2 * math.sqrt(14) * STEPS)
    yield Row("f32 transport", {"transport_dtype": "f32"}, like="keller_jordan")
    for grid, period, factor in (([2, 3], 2, 0.5), ([5, 1], 3, 2)):
        yield Row(f"blocks {grid}", {"blocks": {"grid": grid, "period": period,
                                                "lr_factor": factor}},
                  muon={"blocks": (grid, period, factor)})
    halves = {"rows": [{"size": 8, "lr_factor": 0.5}, 4]}
    yield Row("blocks of parts", {"blocks": {"grid": [2, 2], "period": 2}}, {"parts": halves},
              muon={"blocks": ([2, 2], 2, 1)},
              muon_wq={"parts": [(range(8), range(8), 0.5), (range(8, 12), range(8), 1.0)]})


def momentum():
    yield Row("ema", {"momentum": 0.9, "momentum_kind": "ema", "nesterov": True},
              muon={"momentum": 0.9})
    for nesterov in (True, False):
        yield Row(f"corrected ema, Nesterov {nesterov}",
                  {"momentum": 0.9, "momentum_kind": "ema_corrected", "nesterov": nesterov,
                   "normalize": "add_eps", "eps": 0.5},
                  adamw={"adam_form": "nesterov"}, adam={"form": "nesterov"},
                  muon={"momentum": 0.9, "kind": "ema_corrected", "nesterov": nesterov,
                        "normalize": "add_eps", "eps": 0.5})
    yield Row("heavy ball", {"momentum": 0.9, "momentum_kind": "heavy_ball", "nesterov": False},
              muon={"momentum": 0.9, "kind": "heavy_ball", "nesterov": False})
    schedule = {"from": 0.7, "warmup_steps": 2, "cooldown_steps": 1, "total_steps": 3}
    yield Row("schedule", {"momentum": 0.9, "momentum_schedule": schedule},
              muon={"momentum": lambda t: [0.7, 0.8, 0.9][t]})
    down = {"from": 0.5, "cooldown_steps": 2, "total_steps": 3}
    yield Row("cool-down", {"momentum": 0.9, "momentum_schedule": down},
              muon={"momentum": lambda t: [0.9, 0.9, 0.7][t]})
    # Rounded at random, by less than a bf16 step (2^-7) of each element.
    yield Row("bf16 momentum", {"momentum_dtype": "bf16"}, unlike="keller_jordan",
              tolerance=2**-7 * LR * 0.2 * math.sqrt(14) * STEPS)
    yield Row("f32 momentum", {"momentum_dtype": "f32"}, like="keller_jordan")


def rates():
    for scale in ("original", "match_rms", "ratio", "max_dim", "none"):
        yield Row(scale, {"scale": scale, "scale_factor": 0.7},
                  muon={"scale": scale, "scale_factor": 0.7})
    yield Row("rates", {"lr": 0.03, "lr_factor": 0.5}, adamw={"lr": 0.05, "lr_factor": 0.1},
              muon={"lr": 0.015}, adam={"lr": 0.005})
    for kind in ("decoupled", "independent", "lr_squared", "cautious"):
        keys = {"weight_decay": 0.4, "weight_decay_kind": kind}
        both = {"weight_decay": 0.4, "decay_kind": kind}
        yield Row(kind, keys, adamw=keys, muon=both, adam=both)
    for axis in ("rows", "columns", "longer"):
        yield Row(f"NorMuon, {axis}", {"normuon": {"axis": axis, "beta2": 0.9}},
                  muon={"normuon": (axis, 0.9)})
    yield Row("no NorMuon", {"normuon": None}, like="keller_jordan")


def parts():
    def whole(*ranges, rows=True):
        full = (12, 8)
        return [(r[0], range(full[1]), *r[1:]) if rows else (range(full[0]), r[0], *r[1:])
                for r in ranges]
    yield Row("rows", {}, {"parts": {"rows": [{"name": "a", "ranges": [[0, 2], [5, 7]],
                                               "lr_factor": 2}, [[2, 5], [7, 12]]]}},
              muon_wq={"parts": whole(([0, 1, 5, 6], 2.0), ([2, 3, 4, 7, 8, 9, 10, 11], 1.0))})
    yield Row("columns", {}, {"parts": {"cols": [0, 3, 8], "lr_factor": [0.5, 3]}},
              muon_wq={"parts": whole((range(3), 0.5), (range(3, 8), 3.0), rows=False)})
    yield Row("heads", {}, {"parts": {"heads": 3, "lr_factor": 0.25}},
              muon_wq={"parts": whole(*((range(h * 4, h * 4 + 4), 0.25) for h in range(3)))})
    qkv = {"groups": 2, "q_per_group": 1, "head_dim": 2, "q": {"lr_factor": 3, "axis": "rows"},
           "k": {"axis": "columns"}, "v": {"axis": "longer"}}
    yield Row("qkv, each with its axis", {"normuon": {"axis": "rows", "beta2": 0.9}},
              {"parts": {"qkv": qkv}}, muon={"normuon": ("rows", 0.9)},
              muon_wq={"parts": whole(([0, 1, 6, 7], 3.0, "rows"), ([2, 3, 8, 9], 1.0, "columns"),
                                      ([4, 5, 10, 11], 1.0, "longer"))})
    items = {"rows": [{"size": 8, "axis": "columns"}, 4]}
    yield Row("an axis of one part", {"normuon": {"axis": "rows", "beta2": 0.9}},
              {"parts": items}, muon={"normuon": ("rows", 0.9)},
              muon_wq={"parts": whole((range(8), 1.0, "columns"), (range(8, 12), 1.0))})
    yield Row("one axis for all parts", {"normuon": {"axis": "rows", "beta2": 0.9}},
              {"parts": {"heads": 2, "axis": "columns"}}, muon={"normuon": ("rows", 0.9)},
              muon_wq={"parts": whole(*((range(h * 6, h * 6 + 6), 1.0, "columns")
                                        for h in range(2)))})


LOGITS = [[50, 400, 100, 900], [1, 2, 3, 4], [-5, 100.5, 1e4, 0]]


def clipped(threshold, factor):
    """factor(gammas, row): what row of wq is multiplied with."""
    def after(t, w):
        gamma = [threshold / s if s > threshold else 1.0 for s in LOGITS[t]]
        for i, row in enumerate(w):
            w[i] = [x * factor(gamma, i) for x in row]
    return {"after": after}


def qk_clip():
    def row(kind, factor, **more):
        clip = {"kind": kind, "layer": 3, "heads": 4, **more}
        return Row(f"qk_clip {kind}", wq={"qk_clip": clip}, logits=LOGITS,
                   muon_wq=clipped(more.get("threshold", 100), factor))
    yield row("q", lambda gamma, i: gamma[i // 3]**0.25 if i // 3 in (1, 3) else 1.0, head_dim=3,
              select=[1, 3], threshold=60, exponent=0.25)
    yield row("k", lambda gamma, i: min(gamma[i // 6 * 2:][:2])**0.75, kv_heads=2, head_dim=6,
              exponent=0.25)
    yield row("mla_q", lambda gamma, i: min(gamma[i // 6 * 2:][:2])**(1 if i % 3 == 2 else 0.3),
              kv_heads=2, nope=2, rope=1, exponent=0.3)
    yield row("mla_kv", lambda gamma, i: min(gamma[i // 6 * 2:][:2])**0.7 if i % 6 < 4 else 1.0,
              kv_heads=2, nope=4, v_dim=2, exponent=0.3)
    yield row("qkv", lambda gamma, i: (gamma[i // 2]**0.5 if i < 8 else
                                       min(gamma)**0.5 if i < 10 else 1.0), kv_heads=1, head_dim=2)


def adamw():
    yield Row("torch", adamw={"betas": [0.8, 0.99], "adam_eps": 0.1, "adam_form": "torch"},
              adam={"betas": (0.8, 0.99), "eps": 0.1})
    yield Row("folded", adamw={"betas": [0.8, 0.99], "adam_eps": 0.1, "adam_form": "folded"},
              adam={"betas": (0.8, 0.99), "eps": 0.1, "form": "folded"})
    yield Row("every second step", adamw={"update_every": 2}, adam={"every": 2})


def layouts():
    def lies(what, mesh, **keys):
        return Row(what, wq=keys, adamw={"placements": ["R"] * mesh.count("=")},
                   meshes=(mesh,), like="keller_jordan")
    yield lies("cuts", "tp=2,fsdp=2", cuts=["tp:0:2", "fsdp:0"])
    yield lies("row_bounds", "fsdp=3", row_bounds=[0, 1, 9, 12])
    yield lies("owner", "fsdp=3", owner=2)
    yield lies("flat", "fsdp=2", flat=["0-31", "31-96"])
    for reading in ("literal", "ordered"):
        # Uneven, so that the two differ.
        yield Row(reading, wq={"placements": ["SS(0,2)", "S(0)"], "reading": reading},
                  meshes=("fsdp=2,tp=2", "fsdp=3,tp=2"), like="keller_jordan")


def top():
    for keys in ({"chunk_bytes": 300, "window": 1}, {"commit": "eager", "window": 2},
                 {"commit": "atomic"}, {"replicas": "each"}, {"replicas": "auto"},
                 {"replicas": "once"}, {"replica_check": "first"}, {"replica_check": "every"},
                 {"replica_check": "off"}, {"seed": 5}, {"about": {"why": "because"}}):
        yield Row(f"{keys}", top=keys, meshes=("fsdp=2,tp=2",), like="keller_jordan")
    yield Row("grad_scale_inv", {"normalize": "add_eps", "eps": 0.5},
              adamw={"adam_eps": 0.1}, top={"grad_scale_inv": 0.25},
              muon={"normalize": "add_eps", "eps": 0.5, "factor": 0.25},
              adam={"eps": 0.1, "factor": 0.25})


def rows():
    for table in (coefficients, iteration, momentum, rates, parts, qk_clip, adamw, layouts, top):
        yield from table()
