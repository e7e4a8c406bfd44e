"""Tests muonrt.convert. After a conversion from torch's optimizers, training must continue with the same updates.
Every tensor and setting in a state of MoonshotAI/Moonlight c2ad5b2 (examples/toy_train.py) or microsoft/dion
0a059a4 (dion/muon.py, scalar_opts.py) must be converted to muonrt and back."""

import copy
import subprocess
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import torch.distributed.checkpoint as dcp  # noqa: E402
from test_torch import AS_TORCH, torch_muon_in_float32  # noqa: E402
from torch.distributed.checkpoint import state_dict as of_model  # noqa: E402
from torch_models import drawn, train, two_layers  # noqa: E402

import muonrt.torch  # noqa: E402
from muonrt import _safetensors, convert  # noqa: E402

COMMAND = Path(__file__).resolve().parents[3] / "build/bin/muonrt"
TOLERANCE = 2e-6  # absolute tolerance for updates of about 0.02 in float32


def parts(m):
    named = list(m.named_parameters())
    return [[(n, p) for n, p in named if p.ndim == 2], [(n, p) for n, p in named if p.ndim != 2]]


def torchs(m, monkeypatch):
    matrices, rest = parts(m)
    return [torch_muon_in_float32(monkeypatch)(matrices, lr=0.02, momentum=0.9),
            torch.optim.AdamW(rest, lr=3e-3, weight_decay=0.02)]


def trained(monkeypatch):
    """Returns a model and torch's optimizers after three steps."""
    m = two_layers()
    theirs = torchs(m, monkeypatch)
    train(m, range(3), *theirs)
    return m, theirs


IN_F32 = dict(AS_TORCH, iteration_dtype="float32")
HEAVY_BALL = dict(IN_F32, muon=dict(AS_TORCH["muon"], momentum_kind="heavy_ball"))


def same_updates(a, of_a, b, of_b, first=3):
    for step in range(first, first + 3):
        before = [[p.detach().clone() for p in m.parameters()] for m in (a, b)]
        train(a, [step], *of_a)
        train(b, [step], *of_b)
        for p, q, x, y in zip(a.parameters(), b.parameters(), *before):
            assert (p - x).abs().max() > 1e-4
            assert torch.allclose(p - x, q - y, rtol=0, atol=TOLERANCE), (step, p.shape)


def run(*arguments):
    return convert.main([str(a) for a in arguments])


@pytest.mark.parametrize("settings", [IN_F32, HEAVY_BALL])
def test_training_continues_in_muonrt_and_back_in_torch(settings, tmp_path, monkeypatch):
    m, theirs = trained(monkeypatch)
    torch.save({"deep": [o.state_dict() for o in theirs]}, tmp_path / "in.pt")
    assert run(tmp_path / "in.pt", tmp_path / "out.pt") == 0
    twin = copy.deepcopy(m)
    one = muonrt.torch.Muon(twin.named_parameters(), adamw_lr=3e-4, **settings)
    one.load_state_dict(torch.load(tmp_path / "out.pt")["optimizer"])
    assert int(one.state[twin[0].weight]["step"]) == 3
    same_updates(m, theirs, twin, [one])
    torch.save(one.state_dict(), tmp_path / "back.pt")
    assert run(tmp_path / "back.pt", tmp_path / "theirs.pt", "--to", "torch") == 0
    third = copy.deepcopy(twin)
    others = torchs(third, monkeypatch)
    for optimizer, state in zip(others, torch.load(tmp_path / "theirs.pt").values(), strict=True):
        optimizer.load_state_dict(state)
    same_updates(twin, [one], third, others, first=6)


def moonlights(matrices, rest):
    """Returns a state of Moonlight, with one group for all parameters."""
    state = [{"use_muon": True, "momentum_buffer": p} for p in matrices]
    state += [{"use_muon": False, "moment1": p, "moment2": p * p, "step": 3} for p in rest]
    return {"state": dict(enumerate(state)), "param_groups": [dict(
        params=[0, 1, 2, 3], lr=3e-3, wd=0.3, momentum=0.85, nesterov=True, ns_steps=5,
        adamw_betas=(0.8, 0.9), adamw_eps=1e-6)]}


def dions(matrices, rest):
    """Returns a state of Dion. It contains a group for each algorithm, with the settings of both
    algorithms."""
    state = [{"momentum": p} for p in matrices]
    state += [{"momentum": p, "variance": p * p, "step_dev": torch.tensor(3.0)} for p in rest]
    both = dict(step=3, lr=3e-3, weight_decay=0.3, nesterov=False, cautious_wd=False,
                flatten=False, adjust_lr="spectral_norm")
    return {"state": dict(enumerate(state)), "param_groups": [
        both | dict(params=[0, 1], algorithm="muon", mu=0.85, beta1=0.9, beta2=0.95, epsilon=1e-8),
        both | dict(params=[2, 3], algorithm="adamw", mu=0.95, beta1=0.8, beta2=0.9, epsilon=1e-6)]}


@pytest.mark.parametrize("source, form, preset", [(moonlights, "moonlight", "moonlight"),
                                                  (dions, "dion", "dion_muon")])
def test_states_of_other_repositories_are_converted_and_back(source, form, preset, tmp_path):
    m = two_layers()
    matrices, rest = ([drawn(i, *p.shape) for i, (_, p) in enumerate(named)] for named in parts(m))
    theirs = source(matrices, rest)
    torch.save(theirs, tmp_path / "in.pt")
    (tmp_path / "names").write_text("".join(f"{n}\n" for named in parts(m) for n, _ in named))
    assert run(tmp_path / "in.pt", tmp_path / "out.pt", "--names", tmp_path / "names") == 0
    # Dion's momentum is a heavy ball, too.
    one = muonrt.torch.Muon(m.named_parameters(), preset=preset)
    one.load_state_dict(torch.load(tmp_path / "out.pt")["optimizer"])
    for (_, p), want in zip(parts(m)[0], matrices):
        assert torch.equal(one.state[p]["momentum_buffer"], want) and int(one.state[p]["step"]) == 3
    for (_, p), want in zip(parts(m)[1], rest):
        assert torch.equal(one.state[p]["exp_avg"], want) and int(one.state[p]["step"]) == 3
        assert torch.equal(one.state[p]["exp_avg_sq"], want * want)
    of_muon, of_adamw = one.param_groups
    assert of_muon["lr"] == of_adamw["lr"] == 3e-3
    assert of_muon["weight_decay"] == of_adamw["weight_decay"] == 0.3 and of_muon["momentum"] == 0.85
    assert of_adamw["betas"] == (0.8, 0.9) and of_adamw["eps"] == 1e-6
    torch.save(one.state_dict(), tmp_path / "ours.pt")
    assert run(tmp_path / "ours.pt", tmp_path / "back.pt", "--to", form) == 0
    back = torch.load(tmp_path / "back.pt")["optimizer"]
    assert len(back["param_groups"]) == len(theirs["param_groups"])
    for group, want in zip(back["param_groups"], theirs["param_groups"]):
        assert {key: group[key] for key in want} == want
    for key, entry in theirs["state"].items():
        assert set(back["state"][key]) == set(entry)
        for name, value in entry.items():
            same = torch.equal if isinstance(value, torch.Tensor) else lambda a, b: a == b
            assert same(back["state"][key][name], value), (key, name)


def ours(role, counts=(3,), **settings):
    """Returns a state of muonrt.torch with one group."""
    keys = ("momentum_buffer",) if role == "muon" else ("exp_avg", "exp_avg_sq")
    state = {i: {"step": n} | {key: torch.zeros(2, 2) for key in keys} for i, n in enumerate(counts)}
    group = {"role": role, "params": list(state), "param_names": [f"{role}{i}" for i in state]}
    return {"state": state, "param_groups": [group | settings]}


@pytest.mark.parametrize("states, form, text", [
    ([ours("adamw", (2, 3), lr=1)], "dion", "Dion has one count for the parameters of a group"),
    ([ours("muon", lr=1, momentum=0.9), ours("adamw", lr=2)], "moonlight",
     "Moonlight has one lr for all parameters")])
def test_state_that_other_repositories_cannot_store_is_an_error(states, form, text, tmp_path, capsys):
    torch.save(states, tmp_path / "in.pt")
    assert run(tmp_path / "in.pt", tmp_path / "out.pt", "--to", form) == 1
    assert text in capsys.readouterr().err


def torchs_file(tmp_path, monkeypatch):
    """Returns a model and torch's optimizers after three steps, and writes their state to
    state.safetensors."""
    m, theirs = trained(monkeypatch)
    torch.save([o.state_dict() for o in theirs], tmp_path / "in.pt")
    assert run(tmp_path / "in.pt", tmp_path / "state.safetensors") == 0
    return m, theirs


def test_a_file_and_back_keeps_every_bit(tmp_path, monkeypatch):
    _, theirs = torchs_file(tmp_path, monkeypatch)
    assert run(tmp_path / "state.safetensors", tmp_path / "out.pt", "--to", "torch") == 0
    for optimizer, saved in zip(theirs, torch.load(tmp_path / "out.pt").values()):
        now = optimizer.state_dict()
        for key, entry in now["state"].items():
            assert set(entry) == set(saved["state"][key])
            assert all(torch.equal(v, saved["state"][key][k]) for k, v in entry.items())
        for group, other in zip(now["param_groups"], saved["param_groups"]):
            assert group == other
    tensors, metadata = _safetensors.read(tmp_path / "state.safetensors")
    assert metadata["momentum/0.weight"] == "ema" and int(tensors["step"]) == 3
    assert run(tmp_path / "state.safetensors", tmp_path / "ball.safetensors", "--set",
               "momentum_kind=heavy_ball") == 0
    ball, metadata = _safetensors.read(tmp_path / "ball.safetensors")
    # The momentum constant is 0.9, so the heavy-ball sum is ten times the average.
    assert metadata["momentum/0.weight"] == "heavy_ball"
    assert torch.allclose(ball["momentum/0.weight"], 10 * tensors["momentum/0.weight"])


@pytest.mark.skipif(not COMMAND.exists(), reason="the muonrt command is not built")
def test_the_command_imports_a_file_and_exports_it(tmp_path, monkeypatch):
    m, theirs = torchs_file(tmp_path, monkeypatch)
    params, state = tmp_path / "params.safetensors", tmp_path / "state.safetensors"
    _safetensors.write(params, {n: p.detach() for n, p in m.named_parameters()}, {})
    for words in (["import", state, "--params", params, "--step", 3, "--to", tmp_path / "checkpoint"],
                  ["export", tmp_path / "checkpoint", "--state", "--to", tmp_path / "next"]):
        done = subprocess.run([COMMAND, "state", *map(str, words)], text=True, capture_output=True)
        assert done.returncode == 0, done.stderr
    # The file of `muonrt state export` has neither a learning rate nor a momentum constant.
    state = tmp_path / "next" / "state-00001-of-00001.safetensors"
    assert run(state, tmp_path / "out.pt", "--to", "torch") == 1
    assert run(state, tmp_path / "out.pt", "--to", "torch", "--set",
               "lr=0.02", "--set", "momentum=0.9", "--set", "adamw.lr=3e-3") == 0
    back = torch.load(tmp_path / "out.pt")["muon"]
    assert torch.equal(back["state"][0]["momentum_buffer"],
                       theirs[0].state[m[0].weight]["momentum_buffer"])


def test_dcp_folders(tmp_path, monkeypatch):
    m, theirs = trained(monkeypatch)
    state = {"trainer": {"optimizer": of_model.get_optimizer_state_dict(m, theirs), "epoch": 2}}
    dcp.save(state, checkpoint_id=tmp_path / "in", no_dist=True)
    assert run(tmp_path / "in", tmp_path / "out") == 0
    twin = copy.deepcopy(m)
    one = muonrt.torch.Muon(twin.named_parameters(), adamw_lr=3e-4, **IN_F32)
    found = {"optimizer": of_model.get_optimizer_state_dict(twin, one)}
    dcp.load(found, checkpoint_id=tmp_path / "out", no_dist=True)
    of_model.set_optimizer_state_dict(twin, one, optim_state_dict=found["optimizer"])
    same_updates(m, theirs, twin, [one])
    # Also converts from muonrt's DCP format to torch's, which has both optimizers in one dict.
    dcp.save({"optimizer": of_model.get_optimizer_state_dict(twin, one)},
             checkpoint_id=tmp_path / "in2", no_dist=True)
    assert run(tmp_path / "in2", tmp_path / "out2", "--to", "torch") == 0
    third = copy.deepcopy(twin)
    others = torchs(third, monkeypatch)
    train(third, [0], *others)  # creates the state into which the file is loaded
    third.load_state_dict(twin.state_dict())
    found = {"optimizer": of_model.get_optimizer_state_dict(third, others)}
    dcp.load(found, checkpoint_id=tmp_path / "out2", no_dist=True)
    of_model.set_optimizer_state_dict(third, others, optim_state_dict=found["optimizer"])
    same_updates(twin, [one], third, others)


def test_parameters_are_found_by_name(tmp_path, monkeypatch):
    m = torch.nn.Sequential(torch.nn.Linear(6, 6, False), torch.nn.Linear(6, 6, False))
    named = list(m.named_parameters())
    theirs = torch.optim.Muon(named[::-1], lr=0.02)  # equal shapes in the opposite order
    train(m, range(2), theirs)
    torch.save(theirs.state_dict(), tmp_path / "in.pt")
    assert run(tmp_path / "in.pt", tmp_path / "out.pt") == 0
    saved = torch.load(tmp_path / "out.pt")["optimizer"]
    one = muonrt.torch.Muon(named)
    one.load_state_dict(saved)
    for p in m.parameters():
        assert torch.equal(one.state[p]["momentum_buffer"], theirs.state[p]["momentum_buffer"])
    with pytest.raises(muonrt.InvalidArgumentError, match="no param 'x.0'"):
        muonrt.torch.Muon([(f"x.{i}", p) for i, (_, p) in enumerate(named)]).load_state_dict(saved)


def test_masters_of_bfloat16_come_from_the_model(tmp_path, capsys):
    m = two_layers(torch.bfloat16)
    theirs = torch.optim.Muon(parts(m)[0], lr=0.02)
    train(m, [0], theirs)
    torch.save(theirs.state_dict(), tmp_path / "in.pt")
    torch.save({"model": m.state_dict()}, tmp_path / "model.pt")
    assert run(tmp_path / "in.pt", tmp_path / "s.safetensors", "--model", tmp_path / "model.pt") == 0
    tensors = _safetensors.read(tmp_path / "s.safetensors")[0]
    assert torch.equal(tensors["master/0.weight"], m[0].weight.detach().float())
    assert tensors["momentum/0.weight"].dtype == torch.float32
    torch.save(two_layers()[:1].state_dict(), tmp_path / "other.pt")
    assert run(tmp_path / "in.pt", tmp_path / "t.safetensors", "--model", tmp_path / "other.pt") == 1
    assert "no dict with all of ['0.weight', '2.weight']" in capsys.readouterr().err


def state_of(entry=None, **group):
    entry = {"momentum_buffer": torch.zeros(2, 2)} if entry is None else entry
    return {"state": {0: entry}, "param_groups": [{"params": [0], "param_names": ["w"], **group}]}


@pytest.mark.parametrize("state, options, text", [
    (state_of(entry={"momentum_buffer": torch.zeros(2), "second": 1}, lr=1, momentum=0.9), [],
     "param 'w': unknown state 'second'"),
    (state_of(algorithm="normuon"), [], "param 'w': algorithm 'normuon'"),
    (state_of(lr=1, momentum=0.9, warmth=2), [], "unknown setting 'warmth'"),
    (state_of(entry={}, lr=1), [], "param 'w': no state 'exp_avg'"),
    (state_of(lr=1), [], "--set momentum="),
    (state_of(lr=1, momentum=0.9), ["--set", "momentum_kind=sum"], "momentum_kind is 'ema' and 'sum'"),
    (state_of(entry={"exp_avg": torch.zeros(2), "exp_avg_sq": torch.zeros(2)}, lr=1, amsgrad=True),
     [], "amsgrad=True"),
    ([state_of(lr=1, momentum=0.9)] * 2, [], "param 'w' occurs twice"),
    (state_of(lr=1, momentum=0.9, param_names=None), [], "parameter 0 has no name; pass --names"),
    ({"model": {}}, [], "no state of an optimizer"),
    (state_of(entry={"exp_avg": torch.zeros(2), "exp_avg_sq": torch.zeros(2), "step": 2},
              role="adamw", lr=1, step=3), [], "param 'w' is at step 2 and at 3"),
    (state_of(entry={"momentum_buffer": torch.zeros(2, 2, 2)}, lr=1, momentum=0.9),
     ["--to", "torch"], "param 'w' has 3 dimensions"),
])
def test_errors(state, options, text, tmp_path, capsys):
    torch.save(state, tmp_path / "in.pt")
    assert run(tmp_path / "in.pt", tmp_path / "out.pt", *options) == 1
    assert text in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["in.pt"]


def test_a_shard_is_rejected(tmp_path, capsys):
    from torch.distributed import tensor

    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0,
                                         world_size=1)
    try:
        mesh = torch.distributed.init_device_mesh("cpu", (1,))
        shard = tensor.distribute_tensor(torch.zeros(4, 2), mesh, [tensor.Shard(0)])
        torch.save(state_of(entry={"momentum_buffer": shard}, lr=1, momentum=0.9),
                   tmp_path / "in.pt")
        assert run(tmp_path / "in.pt", tmp_path / "out.pt") == 1
        assert "'momentum_buffer' is a DTensor, not a whole tensor" in capsys.readouterr().err
    finally:
        torch.distributed.destroy_process_group()
