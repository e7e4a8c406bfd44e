"""What of PyTorch works beside muonrt.torch.Muon: compile, precision policies, offload, frozen
layers; and trainings of 200 steps beside torch.optim.Muon."""

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from test_torch import AS_TORCH  # noqa: E402
from test_torch_ranks import Model, fsdp, optimizer, role  # noqa: E402
from torch_ranks import full, on_gloo  # noqa: E402

import muonrt.torch  # noqa: E402

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


def test_tied_embedding_and_head():
    m = Model()
    m.head = torch.nn.Linear(8, 11, bias=False)
    m.head.weight = m.embed.weight
    one = muonrt.torch.Muon(m.named_parameters(), lr=0.02, adamw_lr=0.01)
    assert sum(p is m.embed.weight for g in one.param_groups for p in g["params"]) == 1
    losses = train(m, one)
    assert losses[-1] < losses[0] / 2 and m.head.weight is m.embed.weight


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


def batch(step):
    """Noisy, so that the loss does not go to 0 in 200 steps."""
    generator = torch.Generator().manual_seed(step)
    tokens = torch.randint(0, 11, (96,), generator=generator)
    noise = torch.rand(96, generator=generator) < 0.3
    return tokens, torch.where(noise, torch.randint(0, 3, (96,), generator=generator), tokens % 3)


def two_hundred(m, optimizers, rank=0, size=1):
    """Mean loss over all samples of the last 50 steps."""
    mine = slice(rank * 96 // size, (rank + 1) * 96 // size)
    total = torch.zeros(())
    for step in range(200):
        tokens, labels = (x[mine] for x in batch(step))
        m.zero_grad()
        loss = torch.nn.functional.cross_entropy(m(tokens), labels)
        loss.backward()
        for one in optimizers:
            one.step()
        total += loss.detach() / 50 if step >= 150 else 0
    if size > 1:
        dist.all_reduce(total)
    return total.item() / size


def ours(m):
    return muonrt.torch.Muon(m.named_parameters(), lr=0.02, adamw_lr=0.01, betas=(0.9, 0.999),
                             role=role, **AS_TORCH)


def sharded(rank, size):
    m = fsdp(Model(), size)
    return two_hundred(m, [ours(m)], rank, size)


def test_200_steps_as_torch_optim_muon():
    m = Model()
    matrices = [p for n, p in m.named_parameters() if p.ndim == 2 and n != "embed.weight"]
    rest = [p for p in m.parameters() if all(p is not q for q in matrices)]
    theirs = two_hundred(m, [torch.optim.Muon(matrices, lr=0.02, weight_decay=0.1),
                             torch.optim.AdamW(rest, lr=0.01, weight_decay=0.01)])
    m = Model()
    found = {1: two_hundred(m, [ours(m)])}
    for size in (2, 3, 4):
        found[size] = on_gloo(size, sharded)[0]
    # The noise leaves 0.64. torch iterates in bf16, 3e-5 of the loss; half the rate is 3e-3 off.
    assert 0.6 < theirs < 0.75, theirs
    assert all(abs(loss - theirs) < 1e-3 * theirs for loss in found.values()), (theirs, found)
