"""Tests CUDA arrays on a GPU: values, bitwise equality, streams, and use in trainers."""

import copy
import io

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402

import muonrt  # noqa: E402
import muonrt.torch  # noqa: E402
from torch_models import inject, train  # noqa: E402
from torch_ranks import on_gloo  # noqa: E402

RUNS = torch.cuda.is_available() and muonrt.build_info()["cuda"]
pytestmark = pytest.mark.skipif(not RUNS, reason="no CUDA device, or a library without CUDA")
LR = 0.02
# This work takes at least 0.2 seconds on any GPU. A step that does not wait for the stream would
# therefore read wrong gradients.
LONG = 500_000_000


class Model(torch.nn.Module):
    """A model with matrices of 40 x 96 and 33 x 40, vectors, and an embedding (for AdamW)."""

    def __init__(self, dtype=torch.float32, device="cuda"):
        super().__init__()
        torch.manual_seed(0)
        self.embed = torch.nn.Embedding(11, 96, device="cpu")
        self.down = torch.nn.Linear(96, 40, device="cpu")
        self.norm = torch.nn.LayerNorm(40, device="cpu")
        self.out = torch.nn.Linear(40, 33, device="cpu")
        self.to(device=device, dtype=dtype)

    def forward(self, tokens):
        return self.out(torch.tanh(self.norm(self.down(self.embed(tokens)))))


def optimizer(m, muon=None, **settings):
    settings = dict(lr=LR, adamw_lr=3e-3, timeout_ms=20000) | settings
    return muonrt.torch.Muon(m.named_parameters(), muon=muon, **settings)


def on_the_gpu(m, steps=3, **settings):
    one = optimizer(m, **settings)
    train(m, range(steps), one)
    return one


def bits(m):
    return [p.detach().float().cpu().numpy().tobytes() for p in m.parameters()]


def test_a_step_sees_what_the_current_stream_writes():
    torch.cuda.synchronize()
    results = []
    for busy in (False, True):
        m = Model()
        one = optimizer(m)
        inject(m, 0)
        real = [p.grad for p in m.parameters()]
        for p in m.parameters():
            p.grad = -p.grad  # the values that a step would read if it did not wait for the stream
        torch.cuda.synchronize()
        with torch.cuda.stream(torch.cuda.Stream()):
            if busy:
                torch.cuda._sleep(LONG)
            for p, grad in zip(m.parameters(), real):
                p.grad.copy_(grad)
            one.step()
            seen = [p.detach().clone() for p in m.parameters()]
            out = m(torch.arange(11, device="cuda")).detach().clone()
        torch.cuda.synchronize()
        results.append(seen + [out])
    assert all(torch.equal(a, b) for a, b in zip(*results))
    assert all(torch.equal(p, a) for p, a in zip(m.parameters(), seen))


def test_masters_are_copied_after_the_current_stream():
    m = Model(torch.bfloat16)
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()), torch.no_grad():
        torch.cuda._sleep(LONG)
        m.down.weight.fill_(2.0)
        one = optimizer(m)
    assert float(one.state[m.down.weight]["master"].min()) == 2.0
    with torch.no_grad():
        m.down.weight.fill_(3.0)
    one.reset_masters()
    assert float(one.state[m.down.weight]["master"].max()) == 3.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_state_dict_continues_bit_for_bit(dtype):
    muon = {"normuon_axis": "rows"} if dtype == torch.float32 else None
    m = Model(dtype)
    one = on_the_gpu(m, muon=muon)
    state = one.state[m.down.weight]
    assert state["momentum_buffer"].device == m.down.weight.device
    file = io.BytesIO()
    torch.save(one.state_dict(), file)
    file.seek(0)
    # Loads the state from tensors on the GPU, and from tensors on the host.
    saved = [copy.deepcopy(one.state_dict()), torch.load(file, map_location="cpu")]
    twins = [copy.deepcopy(m) for _ in saved]
    others = [optimizer(twin, muon=muon, lr=0.7) for twin in twins]
    for other, from_where in zip(others, saved):
        other.load_state_dict(from_where)
    for x, each in zip((m, *twins), (one, *others)):
        train(x, range(3, 5), each)
    assert bits(twins[0]) == bits(m) and bits(twins[1]) == bits(m)
    assert bits(m) != bits(Model(dtype))
    assert others[0].last_report.step == 5 and others[0].param_groups[0]["lr"] == LR


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_save_waits_for_the_current_stream(tmp_path, dtype):
    muon = {"normuon_axis": "rows"} if dtype == torch.float32 else None
    m, twin = Model(dtype), Model(dtype)
    one, other = on_the_gpu(m, muon=muon), optimizer(twin, muon=muon)
    real = m.down.weight.detach().clone()
    with torch.no_grad():
        m.down.weight.fill_(5.0)
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()), torch.no_grad():
        torch.cuda._sleep(LONG)
        m.down.weight.copy_(real)
        one.save(tmp_path)
    assert other.load(tmp_path) == [] and bits(twin) == bits(m)
    for x, each in zip((m, twin), (one, other)):
        train(x, range(3, 5), each)
    assert bits(twin) == bits(m) and other.last_report.step == 5


def test_grad_scaler():
    m, unscaled = Model(), Model()
    one, other = optimizer(m), optimizer(unscaled)
    scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)
    tokens = torch.arange(11, device="cuda")
    for step in range(2):  # before the second step, the trainer unscales the gradients
        for x in (m, unscaled):
            x.zero_grad()
        scaler.scale(m(tokens).square().mean()).backward()
        if step == 1:
            scaler.unscale_(one)
        scaler.step(one)
        scaler.update()
        unscaled(tokens).square().mean().backward()
        other.step()
        assert bits(m) == bits(unscaled)  # because the scale is a power of two
    before = bits(m)
    m.down.weight.grad[0, 0] = float("inf")
    scaler.step(one)
    scaler.update()
    assert one.last_report.skipped and one.last_report.step == 2 and bits(m) == before
    assert scaler.get_scale() == 512.0


def test_fsdp2_over_nccl(tmp_path):
    """Runs FSDP2 on one rank. FSDP2 uses its own streams, and runs collectives before and after
    each step."""
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("nccl", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        pair = [Model(), fully_shard(Model())]
        both = [optimizer(m) for m in pair]
        tokens = torch.arange(11, device="cuda")
        for _ in range(5):
            losses = [torch.nn.functional.cross_entropy(m(tokens), tokens) for m in pair]
            for one, loss in zip(both, losses):
                one.zero_grad()
                loss.backward()
                one.step()
            assert losses[0].item() == pytest.approx(losses[1].item(), rel=1e-5)
        buffer = both[1].state[both[1]._params[0]]["momentum_buffer"]
        assert isinstance(buffer, dist.tensor.DTensor) and buffer.device.type == "cuda"
    finally:
        dist.destroy_process_group()


def test_the_core_without_muonrt_torch():
    """Uses muonrt.Optimizer directly on CUDA arrays."""
    w, on_host = torch.ones(4, 6, device="cuda"), torch.ones(4, 6)
    grad = torch.randn(4, 6, device="cuda")
    torch.cuda.synchronize()
    one, other = (muonrt.Optimizer([muonrt.Param("w", x, g)], [muonrt.Group("muon", momentum=0.5)],
                                   iteration_dtype="float32", transport_dtype="float32")
                  for x, g in ((w, grad), (on_host, grad.cpu())))
    other.step(0.1)
    # In each of the two results, Newton-Schulz in float32 amplifies two rounding errors of 2^-24 by
    # at most 1000.
    assert one.step(0.1).step == 1 and torch.allclose(w.cpu(), on_host, rtol=0, atol=2e-5)
    momentum = torch.from_dlpack(one.state("w", "momentum"))
    assert momentum.device == w.device and torch.equal(momentum, grad * 0.5)
    with pytest.raises(muonrt.InvalidArgumentError, match="found_inf is True.*on cuda:0"):
        one.step(0.1, found_inf=True)
    assert one.step(0.1, found_inf=torch.ones(1, device="cuda")).skipped
    half = torch.full((), 0.5, device="cuda")
    assert one.step(0.1, grad_scale_inv=half, found_inf=torch.zeros(1, device="cuda")).step == 2
    assert torch.allclose(momentum, grad * 0.5)  # 0.5 * 0.5 + 0.5 * 0.5
    with pytest.raises(muonrt.InvalidArgumentError, match="'w': grad is on the host.*cuda:0"):
        one.set_grad("w", grad.cpu())
    one.close()
    assert torch.allclose(momentum, grad * 0.5)  # the tensor keeps the memory alive


def test_parameters_of_two_devices_are_rejected():
    m = Model()
    m.norm.to("cpu")
    with pytest.raises(muonrt.InvalidArgumentError,
                       match="'norm.weight' is on device 'cpu'.*'down.weight' is on 'cuda:0'"):
        optimizer(m)


def replicated(rank, size):
    torch.cuda.set_device(0)
    m = Model()
    one = on_the_gpu(m)
    return bits(m), one.last_report.bytes_sent


def test_two_processes_on_one_gpu_have_the_results_of_one():
    m = Model()
    on_the_gpu(m)
    (first, sent), (second, _) = on_gloo(2, replicated)
    assert first == second == bits(m) and sent > 0
