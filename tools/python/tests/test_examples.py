"""Runs the examples on one rank and on multiple ranks, and checks that the updates in the benchmark
agree."""

import contextlib
import importlib.util
import io
import os
import re
import runpy
import socket
import subprocess
import sys
from pathlib import Path

import pytest

TRAINERS = {"hf_trainer.py": "transformers", "accelerate_ddp.py": "accelerate", "lightning_ddp.py": "lightning",
            "torchtitan_fsdp2.py": "torchtitan", "deepspeed_zero.py": "deepspeed", "megatron_ddp.py": "megatron",
            "megatron_registry.py": "emerging_optimizers"}
EXAMPLES = Path(__file__).resolve().parents[2] / "examples/python"


def run(*words):
    done = subprocess.run([sys.executable, *words], text=True, capture_output=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_numpy_ranks():
    assert run(str(EXAMPLES / "numpy_ranks.py"), "3").startswith("3 ranks: loss")


def example(rank, size, name, port, arguments):
    """Runs an example in this process with the environment of torchrun, and returns its output."""
    import torch.distributed as dist

    dist.destroy_process_group()  # the example creates its own process group
    if size > 1 or name in TRAINERS:
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size),
                          MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    # Otherwise DeepSpeed compiles its communication extension, which takes more than a minute.
    if name == "deepspeed_zero.py":
        os.environ["DS_ACCELERATOR"] = "cpu"
        # Imports the submodule by name, because the attribute `torch` of deepspeed.comm is PyTorch.
        importlib.import_module("deepspeed.comm.torch").build_shm_op = lambda: None
    sys.argv = [name, *arguments]
    sys.path.insert(0, str(EXAMPLES))  # as if Python ran this file as a program
    with contextlib.redirect_stdout(io.StringIO()) as out, cuda_on_the_host(name.startswith("megatron")):
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    return out.getvalue()


@contextlib.contextmanager
def cuda_on_the_host(replaced):
    """Creates a tensor in host memory if Megatron-LM, which supports only CUDA, requests it on a
    GPU. Also replaces all_gather, because gloo's version requires tensors of equal sizes."""
    import torch
    import torch.distributed as dist

    def all_gather(gathered, own, group=None):
        gathered[dist.get_rank(group)].copy_(own)
        for rank, tensor in enumerate(gathered):
            dist.broadcast(tensor, group=group, group_src=rank)

    class OnHost(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, arguments=(), settings=None):
            settings = dict(settings or {})
            if function is torch.Tensor.type and not arguments[1:]:  # Megatron-LM accepts only CUDA's types
                return function(*arguments).replace("torch.", "torch.cuda.")
            if str(settings.get("device", "")).startswith("cuda"):
                settings["device"] = "cpu"
            return function(*arguments, **settings)

    if replaced:
        torch.cuda.current_device = lambda: "cpu"
        torch.cuda.current_stream = torch.cuda.synchronize = lambda: None
        dist.all_gather = all_gather
    with OnHost() if replaced else contextlib.nullcontext():
        yield


def over_ranks(name, ranks, *arguments):
    """Runs an example on multiple ranks and returns the output of rank 0. Does not use torchrun,
    because each rank would then spend seconds to import torch."""
    pytest.importorskip("torch")
    from torch_ranks import on_gloo

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    return on_gloo(ranks, example, name, port, arguments)[0]


@pytest.mark.parametrize("name, ranks, says", [
    ("torch_single.py", 1, "loss"), ("first_step.py", 1, "difference"),
    ("torch_fsdp2.py", 1, "1 ranks: loss"), ("torch_fsdp2.py", 2, "2 ranks: loss"),
    ("torch_moe.py", 4, "4 ranks: loss"), ("torch_functions.py", 2, "the same weights")])
def test_torch(name, ranks, says):
    assert says in over_ranks(name, ranks)


@pytest.mark.parametrize("name, mode", [*((name, None) for name in TRAINERS), ("megatron_registry.py", "bf16"),
                                        ("megatron_registry.py", "layer-wise")])
def test_torch_trainer_resumes_on_another_number_of_ranks(name, mode, tmp_path):
    if importlib.util.find_spec(TRAINERS[name]) is None:
        pytest.skip(f"{TRAINERS[name]} is not installed")
    folder = str(tmp_path / "resumed")

    def loss(ranks, folder, steps, *further):
        output = over_ranks(name, ranks, folder, steps, *further)
        return float(re.search(rf"loss ([0-9.]+) at step {steps}", output)[1])

    more = [mode] if mode else []
    # DeepSpeed begins with stage 1 of ZeRO and continues with stage 2.
    begin = loss(2, folder, "8", *(["1"] if name == "deepspeed_zero.py" else more))
    resumed = loss(1, folder, "16", *more)
    whole = loss(2, str(tmp_path / "whole"), "16", *more)
    # Each rank rounds the gradients of its batch, and Lightning runs in bf16.
    bf16 = mode or name == "lightning_ddp.py"
    assert abs(resumed - whole) < (1e-2 if bf16 else 2e-3) * whole and resumed < begin


def test_torch_program_of_the_readme():
    torch = pytest.importorskip("torch")
    readme = (EXAMPLES.parents[2] / "README.md").read_text()
    model = torch.nn.Linear(4, 3)
    before = model.weight.detach().clone()
    model(torch.ones(2, 4)).sum().backward()
    program = readme.split("```python\n")[1].split("```")[0]
    exec(program, {"model": model})
    assert not torch.equal(model.weight, before)


def test_torch_bench_agrees_with_torch():
    output = over_ranks("../../python/bench.py", 1, "--layers", "1", "--width", "64", "--steps", "1")
    assert "torch.optim.Muon" in output and "2 ranks" in output
    assert "outside of the library" in output


def test_torch_may_be_imported_after_muonrt():
    pytest.importorskip("torch")
    assert run("-c", """import muonrt, torch
import muonrt.torch
threads = torch.get_num_threads()
p = torch.nn.Parameter(torch.ones(4, 3))
optimizer = muonrt.torch.Muon([("w", p)])
p.grad = torch.ones(4, 3)
optimizer.step()
(torch.ones(64, 64) @ torch.ones(64, 64)).sum()
assert torch.get_num_threads() == threads
print(optimizer.last_report.step)""") == "1\n"
