"""Features of PyTorch with muonrt.torch.Muon: compile, precision policies, offload, frozen layers."""

import pytest

torch = pytest.importorskip("torch")

from torch_models import Model, fsdp, full, optimizer  # noqa: E402
from torch_ranks import on_gloo  # noqa: E402

TOKENS = torch.arange(44) % 11


def losses_of(m, one, steps=30):
    losses = []
    for _ in range(steps):
        one.zero_grad()
        loss = torch.nn.functional.cross_entropy(m(TOKENS).float(), TOKENS % 3)
        loss.backward()
        one.step()
        losses.append(loss.item())
    return losses


def test_compile():
    plain, compiled = Model(), torch.compile(Model(), backend="aot_eager")
    pair = [losses_of(m, optimizer(m), 8) for m in (plain, compiled)]
    assert pair[0][-1] < pair[0][0]
    assert pair[0] == pytest.approx(pair[1], rel=1e-4)  # parameters change under the graph


def policies(rank, size):
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy

    mixed = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    frozen = Model()
    frozen.embed.weight.requires_grad_(False)
    before = full(frozen.embed.weight)
    for name, m, policy, least in (
            ("mixed precision", Model(), {"mp_policy": mixed}, 2),
            ("bfloat16 shards", Model().bfloat16(), {}, 2),
            ("offload", Model(), {"offload_policy": CPUOffloadPolicy(pin_memory=False)}, 2),
            ("frozen", frozen, {}, 1.2)):
        dtype = m.up.weight.dtype
        one = optimizer(fsdp(m, **policy))
        losses = losses_of(m, one)
        assert losses[-1] < losses[0] / least, (name, losses[::10])
        assert m.up.weight.dtype == dtype, name
        assert (dtype == torch.bfloat16) == ("master" in one.state[m.up.weight]), name
    assert all(p is not frozen.embed.weight for p in one._params)
    assert (full(frozen.embed.weight) == before).all()


def test_policies_of_fsdp2():
    on_gloo(2, policies)
