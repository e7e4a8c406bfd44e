"""What of PyTorch works with muonrt.torch.Muon: compile, precision policies, offload, frozen layers."""

import pytest

torch = pytest.importorskip("torch")

from test_torch_ranks import Model, fsdp, optimizer  # noqa: E402
from torch_ranks import full, on_gloo  # noqa: E402

TOKENS = torch.arange(44) % 11


def train(m, one, steps=30, autocast=False):
    losses = []
    for _ in range(steps):
        one.zero_grad()
        # Autocast keeps its copies of weights as long as it lasts: a forward pass, not a training.
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            out = m(TOKENS)
        loss = torch.nn.functional.cross_entropy(out.float(), TOKENS % 3)
        loss.backward()
        one.step()
        losses.append(loss.item())
    return losses


def test_compile():
    plain, compiled = Model(), torch.compile(Model(), backend="aot_eager")
    pair = [train(m, optimizer(m), 8) for m in (plain, compiled)]
    assert pair[0][-1] < pair[0][0]
    assert pair[0] == pytest.approx(pair[1], rel=1e-4)  # parameters change under the graph


def test_autocast():
    m = Model()
    losses = train(m, optimizer(m), autocast=True)
    assert losses[-1] < losses[0] / 2 and m.up.weight.grad.dtype == torch.float32


def with_policy(size, **policy):
    from torch.distributed.fsdp import fully_shard

    m = Model()
    for layer in (m.up, m.down):
        fully_shard(layer, **policy)
    return fully_shard(m, **policy)


def mixed_precision(rank, size):
    from torch.distributed.fsdp import MixedPrecisionPolicy

    m = with_policy(size, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16,
                                                         reduce_dtype=torch.float32))
    losses = train(m, optimizer(m))
    assert m.up.weight.dtype == torch.float32
    return losses[-1] < losses[0] / 2


def bfloat16_shards(rank, size):
    m = fsdp(Model().bfloat16(), size)
    one = optimizer(m)
    losses = train(m, one)
    assert one.state[m.up.weight]["master"].dtype == torch.float32
    return losses[-1] < losses[0] / 2


def offload(rank, size):
    from torch.distributed.fsdp import CPUOffloadPolicy

    m = with_policy(size, offload_policy=CPUOffloadPolicy(pin_memory=False))
    losses = train(m, optimizer(m))
    return losses[-1] < losses[0] / 2


def frozen(rank, size):
    m = Model()
    m.embed.weight.requires_grad_(False)
    m = fsdp(m, size)
    before = full(m.embed.weight)
    one = optimizer(m)
    losses = train(m, one)
    assert all(p is not m.embed.weight for p in one._params)
    return (full(m.embed.weight) == before).all() and losses[-1] < losses[0] - 0.2


def each(rank, size):
    return {work.__name__: bool(work(rank, size))
            for work in (mixed_precision, bfloat16_shards, offload, frozen)}


def test_policies_of_fsdp2():
    for got in on_gloo(2, each):
        assert all(got.values()) and len(got) == 4, got
