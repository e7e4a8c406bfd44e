"""The examples run, alone and over ranks."""

import contextlib
import io
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import muonrt

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def run(name, *arguments, before=()):
    return subprocess.run([sys.executable, *before, str(EXAMPLES / name), *arguments], text=True,
                          capture_output=True, timeout=300)


@pytest.mark.parametrize("ranks", ["1", "3"])
def test_numpy_ranks(ranks):
    done = run("numpy_ranks.py", ranks)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{ranks} ranks: loss"), done.stdout


def example(rank, size, name, port, arguments):
    """Runs it in this process as torchrun does; what it prints."""
    import torch.distributed as dist

    dist.destroy_process_group()  # it makes its own
    if size > 1:
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size),
                          MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    sys.argv = [name, *arguments]
    with contextlib.redirect_stdout(io.StringIO()) as out:
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    return out.getvalue()


def over_ranks(name, ranks, *arguments):
    """What rank 0 prints. Not by torchrun, where each rank imports torch for many seconds."""
    pytest.importorskip("torch")
    from torch_ranks import on_gloo

    port = int(muonrt.free_address().rpartition(":")[2])
    return on_gloo(ranks, example, name, port, arguments)[0]


@pytest.mark.parametrize("name, module", [("torch_single.py", "torch"), ("torch_fsdp2.py", "torch"),
                                          ("hf_model.py", "transformers")])
def test_torch_in_one_process(name, module):
    pytest.importorskip(module)
    assert "loss" in over_ranks(name, 1)


def test_torch_by_torchrun():
    pytest.importorskip("torch")
    done = run("torch_ddp.py", before=("-m", "torch.distributed.run", "--standalone",
                                       "--nproc-per-node", "2"))
    assert done.returncode == 0, done.stderr
    assert "2 ranks: loss" in done.stdout


@pytest.mark.parametrize("name, ranks", [("torch_fsdp2.py", 2), ("torch_fsdp2_tp.py", 4),
                                         ("torch_moe.py", 4)])
def test_torch_over_ranks(name, ranks):
    assert f"{ranks} ranks: loss" in over_ranks(name, ranks)


def test_torch_resume_over_other_ranks(tmp_path):
    assert "2 ranks: steps 0 to 20" in over_ranks("resume_dcp.py", 2, str(tmp_path))
    assert "3 ranks: steps 20 to 40" in over_ranks("resume_dcp.py", 3, str(tmp_path))


def test_torch_program_of_the_readme():
    torch = pytest.importorskip("torch")
    readme = (EXAMPLES.parents[2] / "README.md").read_text()
    model = torch.nn.Linear(4, 3)
    before = model.weight.detach().clone()
    model(torch.ones(2, 4)).sum().backward()
    program = readme.split("```python\n")[1].split("```")[0]
    exec(program, {"model": model})
    assert not torch.equal(model.weight, before)


def test_torch_bench_agrees_with_what_it_measures_beside():
    pytest.importorskip("torch")
    done = run("../bench.py", "--layers", "1", "--width", "64", "--steps", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("torch.optim.Muon") == 2 and done.stdout.count("2 ranks") == 2
    assert "outside of the library" in done.stdout


@pytest.mark.parametrize("order", ["torch, muonrt", "muonrt, torch"])
def test_torch_both_orders_of_import(order):
    pytest.importorskip("torch")
    program = f"""import {order}
import muonrt.torch, torch
threads = torch.get_num_threads()
p = torch.nn.Parameter(torch.ones(4, 3))
optimizer = muonrt.torch.Muon([("w", p)])
p.grad = torch.ones(4, 3)
optimizer.step()
(torch.ones(64, 64) @ torch.ones(64, 64)).sum()
assert torch.get_num_threads() == threads
print(optimizer.last_report.step)"""
    done = subprocess.run([sys.executable, "-c", program], text=True, capture_output=True,
                          timeout=300)
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr


def test_each_is_under_80_lines():
    for path in EXAMPLES.glob("*.py"):
        assert len(path.read_text().splitlines()) < 80, path.name
