"""How muonrt.torch.Muon reads tensors: stored (in, out), stacks, several dimensions for the rows,
parts of fused matrices."""

import warnings

import pytest

torch = pytest.importorskip("torch")

from test_torch_ranks import WAYS, one_rank, steps_of  # noqa: E402
from torch_ranks import full, on_gloo  # noqa: E402

import muonrt  # noqa: E402
import muonrt.torch  # noqa: E402

# Rules that ask which side the rows are.
SIDED = dict(muon={"scale_rule": "original", "normuon": "rows"}, transport_dtype="float32")


class Conv1D(torch.nn.Module):
    """As transformers has it: inputs x outputs."""

    def __init__(self, outputs, inputs):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(inputs, outputs))


class Block(torch.nn.Module):
    """Two layers of GPT-2's names, stored (in, out) or (out, in), of the same weights."""

    def __init__(self, transposed):
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        for name, (outputs, inputs) in dict(c_fc=(24, 7), c_proj=(7, 24)).items():
            whole = torch.randn(outputs, inputs, generator=generator)
            layer = Conv1D(outputs, inputs) if transposed else \
                torch.nn.Linear(inputs, outputs, bias=False)
            layer.weight.data.copy_(whole.T if transposed else whole)
            setattr(self, name, layer)


def gradient(index, shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(50 + index))


def stepped(m, one, transposed):
    """Two steps under the gradients that follow from the layers alone."""
    for _ in range(2):
        for index, p in enumerate(m.parameters()):
            shape = tuple(p.shape)
            whole = gradient(index, shape[::-1] if transposed else shape)
            p.grad = whole.T.contiguous() if transposed else whole
        one.step()
    return m


def outputs_by_inputs():
    m = Block(transposed=False)
    stepped(m, muonrt.torch.Muon(m.named_parameters(), **SIDED), False)
    return {name: full(p) for name, p in m.named_parameters()}


def by_group(m):
    return muonrt.torch.Muon([{"params": m.named_parameters(), "transposed": True}], **SIDED)


def by_role(m):
    return muonrt.torch.Muon(m.named_parameters(), **SIDED,
                             role=lambda name, p: ("muon", {"transposed": True}))


@pytest.mark.parametrize("make", [by_group, by_role])
def test_inputs_by_outputs_move_as_the_transpose(make):
    want, m = outputs_by_inputs(), Block(transposed=True)
    before = {name: full(p) for name, p in m.named_parameters()}
    stepped(m, make(m), True)
    for name, p in m.named_parameters():
        assert full(p).T.tobytes() == want[name].tobytes() != before[name].T.tobytes(), name


WHOLE, BOUNDS = (11, 6), [0, 3, 11]


def shard_of(whole, rank):
    """Rows between bounds, which no DTensor has."""
    return whole[BOUNDS[rank]:BOUNDS[rank + 1]].clone()


def whole_and_experts():
    generator = torch.Generator().manual_seed(5)
    return torch.randn(WHOLE, generator=generator), torch.randn(2, 5, 6, generator=generator)


def two_steps(rows, experts, cut_rows, cut_experts, role=None):
    rows, experts = torch.nn.Parameter(rows), torch.nn.Parameter(experts)
    one = muonrt.torch.Muon([("rows", rows), ("experts", experts)], role=role, **SIDED)
    for step in range(2):
        rows.grad = cut_rows(gradient(step, WHOLE))
        experts.grad = cut_experts(gradient(step + 2, (2, 5, 6)))
        one.step()
    one.close()
    return rows.detach(), experts.detach()


def plain_shards(rank, size, want_rows, want_experts):
    mesh = muonrt.Mesh((size,))
    told = {"rows": {"shape": WHOLE, "layout": muonrt.Layout(mesh, row_bounds=BOUNDS)},
            "experts": {"shape": (2, 5, 6), "view": "stack", "layout": muonrt.Layout(mesh, "S(0)")}}
    rows, experts = whole_and_experts()
    got = two_steps(shard_of(rows, rank), experts[rank:rank + 1].clone(),
                    lambda g: shard_of(g, rank), lambda g: g[rank:rank + 1].clone(),
                    lambda name, p: ("muon", told[name]))
    assert got[0].numpy().tobytes() == want_rows[BOUNDS[rank]:BOUNDS[rank + 1]].tobytes()
    assert got[1].numpy().tobytes() == want_experts[rank:rank + 1].tobytes()


def test_plain_tensors_that_are_shards():
    want = two_steps(*whole_and_experts(), torch.clone, torch.clone,
                     lambda name, p: ("muon", "stack" if name == "experts" else {}))
    on_gloo(2, plain_shards, *[w.numpy() for w in want])


def test_stacks_and_rows_of_several_dimensions():
    """2 x 3 experts, heads x head_dim x inputs: the bits of the matrices by themselves."""
    generator = torch.Generator().manual_seed(0)
    experts, heads = (torch.nn.Parameter(torch.randn(s, generator=generator))
                      for s in ((2, 3, 8, 5), (2, 4, 5)))
    alone = [(f"m{i}", torch.nn.Parameter(w.detach().clone()))
             for i, w in enumerate([*experts.flatten(0, 1), heads.flatten(0, 1)])]
    one = muonrt.torch.Muon([{"params": [("experts", experts)], "batch_dims": 2},
                             {"params": [("heads", heads)], "row_dims": 2}], **SIDED)
    other = muonrt.torch.Muon(alone, **SIDED)
    experts.grad, heads.grad = gradient(0, experts.shape), gradient(1, heads.shape)
    for (_, p), grad in zip(alone, [*experts.grad.flatten(0, 1), heads.grad.flatten(0, 1)]):
        p.grad = grad.clone()
    one.step()
    other.step()
    got = [*experts.flatten(0, 1), heads.flatten(0, 1)]
    assert all(torch.equal(p, q) for p, (_, q) in zip(got, alone))


def test_what_is_said_of_dimensions_is_checked():
    p = torch.nn.Parameter(torch.ones(2, 3, 4))
    with pytest.raises(muonrt.InvalidArgumentError, match="tell it by role="):
        muonrt.torch.Muon([("w", p)])
    with pytest.raises(muonrt.InvalidArgumentError, match=r"no setting \['rows'\]"):
        muonrt.torch.Muon([("w", p)], role=lambda name, p: ("muon", {"rows": 2}))
    with pytest.raises(muonrt.InvalidArgumentError, match="param 'w'.*batch_dims"):
        muonrt.torch.Muon([{"params": [("w", p)], "batch_dims": 3}])


def test_conv1d_by_its_names_is_told_where_it_matters():
    def noted(**settings):
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            muonrt.torch.Muon([{"params": Block(True).named_parameters(), **settings.pop("of", {})}],
                              **settings)
        return [str(w.message) for w in found]

    ratio = {"scale_rule": "ratio"}
    assert len(noted(muon=ratio)) == 1 and "param 'c_fc.weight': shape (7, 24)" in noted(muon=ratio)[0]
    assert len(noted(muon={"normuon": "rows"})) == 1
    assert noted() == []  # match_rms has no sides
    assert noted(muon=ratio, of={"transposed": True}) == []
    assert noted(muon=ratio, of={"transposed": False}) == []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        muonrt.torch.Muon(Block(False).named_parameters(), muon=ratio)


def flattened(m, size):
    """As torchtitan's dp_shard_cp: two dimensions of a mesh, taken as one."""
    mesh = torch.distributed.init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("dp", "cp"))
    return torch.distributed.fsdp.fully_shard(m, mesh=mesh["dp", "cp"]._flatten("dp_cp"))


def of_a_whole_mesh(m, size):
    """The same, of parameters that are DTensors on the mesh of all ranks."""
    from torch.distributed.fsdp import DataParallelMeshDims, fully_shard
    from torch.distributed.tensor import Replicate, distribute_module

    mesh = torch.distributed.init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("dp", "cp"))
    assert all(p == Replicate() for q in distribute_module(m, mesh).parameters()
               for p in q.placements)
    return fully_shard(m, mesh=mesh, dp_mesh_dims=DataParallelMeshDims(shard=("dp", "cp")))


def over_two_dimensions(rank, size, want, momenta):
    import torch.distributed.fsdp as fsdp

    WAYS.update(flattened=flattened, of_a_whole_mesh=of_a_whole_mesh)
    for way in ("flattened", "of_a_whole_mesh"):
        if way == "flattened" or hasattr(fsdp, "DataParallelMeshDims"):  # of later torches
            assert steps_of(rank, size, way, want, momenta)[0] == [4, 4, 4, 1][rank]


def test_fsdp2_over_two_dimensions_of_a_mesh():
    on_gloo(4, over_two_dimensions, *one_rank())


def test_fused_and_clipped_weights_by_role():
    """QKV stored (in, out): its parts move as three matrices; a head's rows are multiplied."""
    generator = torch.Generator().manual_seed(9)
    whole, grad = (torch.randn(12, 5, generator=generator) for _ in range(2))
    fused = torch.nn.Parameter(whole.T.contiguous())
    thirds = [(n, torch.nn.Parameter(w.clone())) for n, w in zip("qkv", whole.split(4))]
    parts = [muonrt.Part(n, rows=(4 * i, 4 * i + 4)) for i, n in enumerate("qkv")]
    clip = muonrt.QkClip("q", layer=0, heads=2, head_dim=2, threshold=10.0)
    ones = [muonrt.torch.Muon([("c_attn", fused)], **SIDED,
                              role=lambda n, p: ("muon", {"parts": parts, "transposed": True})),
            muonrt.torch.Muon(thirds, **SIDED,
                              role=lambda n, p: ("muon", {"qk_clip": clip} if n == "q" else {}))]
    fused.grad = grad.T.contiguous()
    for (_, p), g in zip(thirds, grad.split(4)):
        p.grad = g.clone()
    ones[0].step()
    ones[1].step(qk_logits=torch.tensor([40.0, 5.0]))
    q, k, v = fused.detach().T.split(4)
    assert torch.equal(k, thirds[1][1]) and torch.equal(v, thirds[2][1])
    assert torch.equal(q[2:], thirds[0][1][2:])
    assert torch.allclose(q[:2] / 2, thirds[0][1][:2], rtol=1e-6)  # sqrt(10 / 40)
    assert ones[1].last_report.clipped_heads == 1


def test_gpt2_of_transformers():
    transformers = pytest.importorskip("transformers")
    from transformers.pytorch_utils import Conv1D

    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=32, n_positions=8, n_embd=8, n_layer=1, n_head=2))
    stored = {f"{name}.weight" for name, m in model.named_modules() if isinstance(m, Conv1D)}
    assert {name.split(".")[-2] for name in stored} == {"c_attn", "c_proj", "c_fc"}
    ratio = {"scale_rule": "ratio"}
    with pytest.warns(UserWarning, match="'transformer.h.0.attn.c_attn.weight': shape .8, 24. is"):
        muonrt.torch.Muon(model.named_parameters(), muon=ratio)
