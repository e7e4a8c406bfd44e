"""Tests muonrt.plan() with models as dicts of shapes and as modules, compares its results with those
of existing optimizers, and tests invalid input."""

import json
import pathlib

import numpy as np
import pytest

import muonrt

SHAPES = {"layers.0.q_proj.weight": [64, 32], "layers.0.mlp.experts.up_proj": [8, 32, 64],
          "layers.0.mlp.gate.weight": [8, 32], "norm.weight": [32], "embed_tokens.weight": [100, 32]}


def layouts(plan):
    return {p["name"]: p["layout"] for p in json.loads(plan.describe(json=True))["params"]}


def test_a_dict_of_shapes_is_planned_without_ranks():
    plan = muonrt.plan(SHAPES, "dp=2,fsdp=4,tp=2", experts={"ep": 4, "efsdp": 2}, dtype="bfloat16")
    summary = plan.summary()
    assert summary["world"] == 16 and summary["matrices"] == 1 + 8 + 1
    assert summary["elements"] == 64 * 32 + 8 * 32 * 64 + 8 * 32 + 32 + 100 * 32
    found = layouts(plan)
    assert found["layers.0.q_proj.weight"] == "S(0) over tp=2, then S(0) over fsdp=4, R over dp=2"
    assert found["layers.0.mlp.gate.weight"] == "S(0) over fsdp=4, R over dp=2, R over tp=2"
    assert found["layers.0.mlp.experts.up_proj"] == \
        "S(0) over ep=4, then S(0) over efsdp=2, R over dp_replicate=2"
    # Rank 0 holds an eighth of q_proj and of the stack of experts, and a quarter of gate and norm.
    # Of the embedding's 50 rows it holds ceil(50 / 4).
    elements = 64 * 32 // 8 + 32 * 64 + 8 * 32 // 4 + 8 + 13 * 32
    rank = plan.rank(0)
    assert [rank[k] for k in ("param_bytes", "grad_bytes", "master_bytes")] == [
        2 * elements, 2 * elements, 4 * elements]
    assert rank["moment_bytes"] == 4 * elements + 4 * (8 + 13 * 32)
    assert rank["total_bytes"] == sum(v for k, v in rank.items() if k.endswith("_bytes")
                                      and k not in ("sent_bytes", "received_bytes", "total_bytes"))
    assert "16 ranks; 10 matrices" in str(plan) and "... 4 more" in plan.describe(max_rows=1)
    gpu = muonrt.plan(SHAPES, {"fsdp": 4}, device="cuda", muon={"coefficients": "keller_jordan"})
    host = muonrt.plan(SHAPES, {"fsdp": 4}, iteration_dtype="float32")  # not every CPU's default
    assert gpu.rank(0)["scratch_bytes"] != host.rank(0)["scratch_bytes"]


def test_the_plan_of_an_optimizer_is_the_same():
    params = [muonrt.Param("w", np.ones((6, 4), np.float32)), muonrt.Param("v", np.ones(3, np.float32), group=1)]
    groups = [muonrt.Group("muon"), muonrt.Group("adamw")]
    with muonrt.Optimizer(params, groups) as optimizer:
        live, memory = optimizer.plan(), optimizer.memory()
    planned = muonrt.Plan([muonrt.Param("w", None, shape=(6, 4), dtype="float32"),
                           muonrt.Param("v", None, shape=(3,), dtype="float32", group=1)], groups)
    assert live.describe(json=True) == planned.describe(json=True)
    rank = live.rank(0)
    assert all(rank[k] == memory[k] for k in ("message_bytes", "staged_bytes", "scratch_bytes", "check_bytes"))
    assert rank["moment_bytes"] == memory["state_bytes"] == 4 * 24 + 8 * 3


def test_bad_arguments_are_named():
    for mesh, said in (("fsdp", "mesh is 'fsdp'"), ("fsdp=x", "'fsdp=x'"), ("heads=2", "'heads'"), ("pp=2", "'pp'")):
        with pytest.raises(muonrt.InvalidArgumentError, match=said):
            muonrt.plan(SHAPES, mesh)
    with pytest.raises(muonrt.InvalidArgumentError, match="experts has 3 ranks, but mesh has 8"):
        muonrt.plan(SHAPES, "fsdp=8", experts="ep=3")
    with pytest.raises(muonrt.InvalidArgumentError, match="rank is 8"):
        muonrt.plan(SHAPES, "fsdp=8").rank(8)
    with pytest.raises(muonrt.InvalidArgumentError, match="data is None, but shape or dtype"):
        muonrt.Param("w", None, shape=(2, 3))
    with pytest.raises(muonrt.InvalidArgumentError, match="param 'w': data is None"):
        muonrt.Optimizer([muonrt.Param("w", None, shape=(2, 3), dtype="float32")], [muonrt.Group("muon")])


def test_a_torch_model_needs_no_memory():
    torch = pytest.importorskip("torch")
    with torch.device("meta"):
        model = torch.nn.ModuleDict({"embed_tokens": torch.nn.Embedding(50000, 4096),
                                     "q_proj": torch.nn.Linear(4096, 4096, dtype=torch.bfloat16),
                                     "norm": torch.nn.LayerNorm(4096),
                                     "lm_head": torch.nn.Linear(4096, 50000, bias=False)})
    model["norm"].bias.requires_grad_(False)
    plan = muonrt.plan(model, "fsdp=8,tp=8")
    summary = plan.summary()
    assert summary["params"] == 5 and summary["muon_params"] == 1 and summary["muon_elements"] == 4096 * 4096
    linear = 4096 * 4096 // 64 + 4096 // 8
    table = 782 * 4096  # 50000 rows over tp=8, then over fsdp=8, rounded up
    assert plan.rank(0)["param_bytes"] == 2 * linear + 4 * (2 * table + 4096 // 8)


def test_the_time_of_a_step():
    plan = muonrt.plan(SHAPES, "fsdp=8", machine="h100")
    time = plan.time()
    assert time == plan.time("h100") and time["simulated_ranks"] == 8 and time["fits"]
    parts = sum(time[part + "_seconds"] for part in ("products", "local", "exposed", "launch"))
    assert 0 < time["products_seconds"] < parts <= time["step_seconds"] * (1 + 1e-9)
    rank = plan.rank(time["rank"])
    assert [time[k] for k in ("sent_bytes", "received_bytes", "messages")] == [
        rank[k] for k in ("sent_bytes", "received_bytes", "messages")]
    on_host = muonrt.plan(SHAPES, "fsdp=8", machine="host")
    assert on_host.time() == muonrt.plan(SHAPES, "fsdp=8").time("host")
    with pytest.raises(muonrt.InvalidArgumentError, match="machine is 'h101'"):
        plan.time("h101")
    with pytest.raises(muonrt.InvalidArgumentError, match="is a GPU"):
        on_host.time("h100")
    with pytest.raises(muonrt.InvalidArgumentError, match="machine is ''"):
        muonrt.plan(SHAPES, "fsdp=8").time()
    with pytest.raises(muonrt.InvalidArgumentError, match="cannot be read"):
        muonrt.plan(SHAPES, "fsdp=8", machine="/nowhere/machine.json")


def test_the_machine_of_replica_mode_auto():
    def mode(**options):
        plan = muonrt.plan(SHAPES, "dp=8,fsdp=8", replica_mode="auto", **options)
        options = json.loads(plan.describe(json=True))["options"]
        return options["machine"], options["replica_mode"], options["once_seconds"]

    file = pathlib.Path(__file__).parents[2] / "machines/host.json"
    assert mode() == mode(machine="host") == mode(machine=str(file)) == mode(machine=file.read_text())
    assert mode(device="cuda") == mode(machine="h100")
    slow = file.read_text().replace('"general": 31e9', '"general": 3e9')
    assert mode()[2] < mode(machine=slow)[2]
    for name, text in (("hots", "machine is 'hots', but must be one of a100.*the nearest name is 'host'"),
                       ("{}", "machine: name is missing")):
        with pytest.raises(muonrt.InvalidArgumentError, match=text):
            muonrt.plan(SHAPES, "fsdp=8", machine=name)
    with pytest.raises(muonrt.InvalidArgumentError, match="'h200' is a GPU, but device is 'host'"):
        muonrt.plan(SHAPES, "fsdp=8", machine="h200", device="host")
    with pytest.raises(muonrt.InvalidArgumentError, match="cannot be read"):
        muonrt.plan(SHAPES, "fsdp=8", machine="/nowhere/machine.json")
    with pytest.raises(TypeError, match="machine is 3; pass a str"):
        muonrt.plan(SHAPES, "fsdp=8", machine=3)
    with pytest.raises(muonrt.InvalidArgumentError, match="machine is 3; pass a str"):
        muonrt.Plan([], [], machine=3)


def test_a_profile_is_a_file_or_its_text():
    file = pathlib.Path(__file__).parents[2] / "machines/host.json"
    text = file.read_text()
    plan = muonrt.plan(SHAPES, "fsdp=8", machine=str(file))
    assert plan.time() == plan.time(text) == plan.time("host")
    machine = json.loads(text)
    for rate in machine["products"]["rates"]:
        rate["symmetric"] *= 2
        rate["general"] *= 2
    assert plan.time(json.dumps(machine))["products_seconds"] == pytest.approx(plan.time()["products_seconds"] / 2)
