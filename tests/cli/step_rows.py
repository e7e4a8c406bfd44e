"""Every key and value of opt.json, and what each is to the float64 reference where that has other words."""
import math
from dataclasses import dataclass, field

from step_run import EXACT, part

LR = 0.02
STEPS = 3
SHAPES = {"wq": [12, 8], "up": [6, 14], "experts": [3, 5, 4], "norm": [5], "fixed": [3]}
MESHES = ("fsdp=2,tp=2", "fsdp=1,tp=3")
PLACEMENTS = ["S(0)", "S(1)"]


@dataclass
class Row:
    """A configuration. Keys: of opt.json, for all matrices, for wq alone, for AdamW, beside the rules;
    `reference`, `reference_wq`: of the reference in place of them, for all matrices, for wq alone."""
    what: str
    matrix: dict = field(default_factory=dict)
    wq: dict = field(default_factory=dict)
    adamw: dict = field(default_factory=dict)
    top: dict = field(default_factory=dict)
    reference: dict = field(default_factory=dict)
    reference_wq: dict = field(default_factory=dict)
    meshes: tuple = MESHES
    logits: list = None  # of layer 3, one list for each step
    tolerance: float = 5e-6  # f32: a few roundings of weights near 4, and of updates near 0.02
    like: str = ""    # the row with the same bits
    unlike: str = ""  # a row with other bits, where the reference cannot tell them apart


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
    return {"defaults": {"lr": LR, **EXACT}, "rules": rules, **row.top}


def reference_rules(row):
    return {"wq": row.reference | row.reference_wq, "u?": row.reference, "e*": row.reference}


def coefficients():
    yield Row("keller_jordan")

    def of(what, coefficients, like="", unlike="", **keys):
        """Large updates and few steps, so that what the lists make of small singular values shows."""
        return Row(what, {"coefficients": coefficients, "scale_factor": 20, **keys}, like=like, unlike=unlike,
                   tolerance=1.5e-5)
    yield of("you", "you")
    yield of("polar_express", "polar_express")
    yield of("polar_express, all its keys", "polar_express", steps=3, lower_bound=0.01, cushion=0.05, safety=1.05,
             safety_mode="inner")
    yield of("safety of the finished list", "polar_express", safety=1.05, safety_mode="all")
    yield of("the list's own safety", "polar_express", safety_mode="auto", like="polar_express")
    yield of("safety of the input", "polar_express", safety=1.03, safety_mode="none")
    yield of("cans", "cans", steps=3, lower_bound=0.02)
    yield of("deepseek_v4", "deepseek_v4")
    yield of("cubic", "cubic")
    yield of("cans without safety", "cans", steps=3, safety=1)
    yield of("cubic without safety", "cubic", safety=1)
    yield of("polar_express as published", "polar_express", steps=0, safety=0, like="polar_express")
    yield of("cubic as published", "cubic", steps=0, safety=0, like="cubic")
    yield of("classical", "classical", steps=4)
    yield of("classical as published", "classical", unlike="classical")
    yield of("own list", [[2, -1.5, 0.5], [1.9, -1.3, 0.4], [2, -1.5, 0.5]])


def iteration():
    yield Row("standard", {"method": "standard"}, like="keller_jordan")
    yield Row("auto", {"method": "auto"}, like="keller_jordan")  # all matrices are small
    yield Row("gram", {"method": "gram"}, unlike="standard")
    yield Row("gram, own restarts", {"method": "gram", "restarts": [1, 3]}, unlike="gram")
    yield Row("prescaled", {"normalize": "prescaled"}, like="keller_jordan")
    yield Row("add_eps", {"normalize": "add_eps", "eps": 0.5})
    yield Row("max_eps", {"normalize": "max_eps", "eps": 7.0})
    yield Row("aol", {"coefficients": None, "row_scaling": "aol", "scale_factor": 20})
    yield Row("no row scaling", {"row_scaling": "none"}, like="keller_jordan")
    for form in ("standard", "gram"):
        yield Row(f"f32, {form}", {"method": form, "iteration_dtype": "f32"}, like=form)
        # Rounding of entries near 1 in every product, grown by the slopes of the list (numerics: the
        # worst of a bf16 iteration is 0.15), times the rate and scale of the largest matrix.
        yield Row(f"bf16, {form}", {"method": form, "iteration_dtype": "bf16"}, unlike=form,
                  tolerance=0.15 * LR * 0.2 * math.sqrt(14) * STEPS)
        yield Row(f"f16, {form}", {"method": form, "iteration_dtype": "f16"},
                  unlike=f"bf16, {form}", tolerance=0.15 / 8 * LR * 0.2 * math.sqrt(14) * STEPS)
    yield Row("bf16 transport", {"transport_dtype": "bf16"}, unlike="keller_jordan",
              tolerance=2**-8 * LR * 0.2 * math.sqrt(14) * STEPS)
    yield Row("f32 transport", {"transport_dtype": "f32"}, like="keller_jordan")
    for grid, period, factor in (([2, 3], 2, 0.5), ([5, 1], 3, 2)):
        yield Row(f"blocks {grid}", {"blocks": {"grid": grid, "period": period, "lr_factor": factor}})
    yield Row("blocks of parts", {"blocks": {"grid": [2, 2], "period": 2}},
              {"parts": {"rows": [{"size": 8, "lr_factor": 0.5}, 4]}},
              reference_wq=cut_rows((range(8), 0.5), (range(8, 12),)))


def momentum():
    yield Row("ema", {"momentum": 0.9, "momentum_kind": "ema", "nesterov": True})
    # A factor of the momentum shows beside an eps alone.
    yield Row("heavy ball", {"momentum": 0.9, "momentum_kind": "heavy_ball", "nesterov": False,
                             "normalize": "add_eps", "eps": 0.5})
    for what, schedule, numbers in (
            ("schedule", {"from": 0.7, "warmup_steps": 2, "cooldown_steps": 1, "total_steps": 3}, [0.7, 0.8, 0.9]),
            ("cool-down", {"from": 0.5, "cooldown_steps": 2, "total_steps": 3}, [0.9, 0.9, 0.7])):
        yield Row(what, {"momentum": 0.9, "momentum_schedule": schedule},
                  reference={"momentum": numbers, "momentum_schedule": None})
    for nesterov in (True, False):
        yield Row(f"corrected ema, Nesterov {nesterov}",
                  {"momentum": 0.9, "momentum_kind": "ema_corrected", "nesterov": nesterov,
                   "normalize": "add_eps", "eps": 0.5},
                  adamw={"adam_form": "nesterov"})
    yield Row("bf16 momentum", {"momentum_dtype": "bf16"}, unlike="keller_jordan",
              tolerance=2**-8 * LR * 0.2 * math.sqrt(14))
    yield Row("f32 momentum", {"momentum_dtype": "f32"}, like="keller_jordan")


def rates():
    for scale in ("original", "match_rms", "ratio", "max_dim", "none"):
        yield Row(scale, {"scale": scale, "scale_factor": 0.7})
    yield Row("rates", {"lr": 0.03, "lr_factor": 0.5}, adamw={"lr": 0.05, "lr_factor": 0.1})
    for kind in ("decoupled", "independent", "lr_squared", "cautious"):
        keys = {"weight_decay": 0.4, "weight_decay_kind": kind}
        yield Row(kind, keys, adamw=keys)
    for axis in ("rows", "columns", "longer"):
        yield Row(f"NorMuon, {axis}", {"normuon": {"axis": axis, "beta2": 0.9}})
    yield Row("no NorMuon", {"normuon": None}, like="keller_jordan")


def cut_rows(*parts):
    """wq by rows: (indices, rate factor, axis), of which the last ones may be left out."""
    named = [dict(zip(("lr_factor", "axis"), rest)) for _, *rest in parts]
    return {"parts": [part(rows, range(8), **more) for (rows, *_), more in zip(parts, named)]}


def parts():
    yield Row("rows", {}, {"parts": {"rows": [{"name": "a", "ranges": [[0, 2], [5, 7]],
                                               "lr_factor": 2}, [[2, 5], [7, 12]]]}},
              reference_wq=cut_rows(([0, 1, 5, 6], 2.0), ([2, 3, 4, 7, 8, 9, 10, 11],)))
    yield Row("columns", {}, {"parts": {"cols": [0, 3, 8], "lr_factor": [0.5, 3]}},
              reference_wq={"parts": [part(range(12), range(3), 0.5), part(range(12), range(3, 8), 3.0)]})
    yield Row("heads", {}, {"parts": {"heads": 3, "lr_factor": 0.25}},
              reference_wq=cut_rows(*((range(h * 4, h * 4 + 4), 0.25) for h in range(3))))
    normuon = {"normuon": {"axis": "rows", "beta2": 0.9}}
    qkv = {"groups": 2, "q_per_group": 1, "head_dim": 2, "q": {"lr_factor": 3, "axis": "rows"},
           "k": {"axis": "columns"}, "v": {"axis": "longer"}}
    yield Row("qkv, each with its axis", normuon, {"parts": {"qkv": qkv}},
              reference_wq=cut_rows(([0, 1, 6, 7], 3.0, "rows"), ([2, 3, 8, 9], 1.0, "columns"),
                                    ([4, 5, 10, 11], 1.0, "longer")))
    yield Row("an axis of one part", normuon, {"parts": {"rows": [{"size": 8, "axis": "columns"}, 4]}},
              reference_wq=cut_rows((range(8), 1.0, "columns"), (range(8, 12),)))
    yield Row("one axis for all parts", normuon, {"parts": {"heads": 2, "axis": "columns"}},
              reference_wq=cut_rows(*((range(h * 6, h * 6 + 6), 1.0, "columns") for h in range(2))))


LOGITS = [[50, 400, 100, 900], [1, 2, 3, 4], [-5, 100.5, 1e4, 0]]


def clipped(threshold, factor, rows=12):
    """factor(gammas, row): what a row of the weight is multiplied with."""
    gammas = [[threshold / s if s > threshold else 1.0 for s in logits] for logits in LOGITS]
    return {"row_factors": [[factor(gamma, i) for i in range(rows)] for gamma in gammas]}


def qk_clip():
    def row(kind, factor, **more):
        clip = {"kind": kind, "layer": 3, "heads": 4, **more}
        return Row(f"qk_clip {kind}", wq={"qk_clip": clip}, logits=LOGITS,
                   reference_wq=clipped(more.get("threshold", 100), factor))
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
    for form in ("torch", "folded"):
        yield Row(form, adamw={"betas": [0.8, 0.99], "adam_eps": 0.1, "adam_form": form})
    yield Row("every second step", adamw={"update_every": 2})


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
              adamw={"adam_eps": 0.1}, top={"grad_scale_inv": 0.25})


def rows():
    for table in (coefficients, iteration, momentum, rates, parts, qk_clip, adamw, layouts, top):
        yield from table()
