"""The examples run, alone and over ranks."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def run(name, *arguments, before=()):
    return subprocess.run([sys.executable, *before, str(EXAMPLES / name), *arguments], text=True,
                          capture_output=True, timeout=300)


@pytest.mark.parametrize("ranks", ["1", "3"])
def test_numpy_ranks(ranks):
    done = run("numpy_ranks.py", ranks)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{ranks} ranks: loss"), done.stdout


@pytest.mark.parametrize("ranks", [1, 2])
def test_torch_fsdp2(ranks):
    pytest.importorskip("torch")
    over = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    done = run("torch_fsdp2.py", before=over if ranks > 1 else [])
    assert done.returncode == 0, done.stderr
    assert f"{ranks} ranks: loss" in done.stdout, done.stdout


@pytest.mark.parametrize("order", ["torch, muonrt", "muonrt, torch"])
def test_both_orders_of_import(order):
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
