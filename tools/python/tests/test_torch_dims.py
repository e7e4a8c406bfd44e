"""Tests how muonrt.torch.Muon forms matrices from tensors: inputs x outputs, stacks, rows that span
multiple dimensions, and parts."""

import warnings

import pytest

torch = pytest.importorskip("torch")

from test_torch_ranks import SIDED  # noqa: E402
from torch_models import drawn  # noqa: E402

import muonrt  # noqa: E402
import muonrt.torch  # noqa: E402


def thirds(whole):
    parts = [muonrt.Part(n, rows=(4 * i, 4 * i + 4)) for i, n in enumerate("qkv")]
    return of_role({"parts": parts, "transposed": True})(whole)


def of_role(settings):
    return lambda whole: muonrt.torch.Muon([("w", whole)], **SIDED, role=lambda *_: ("muon", settings))


def of_group(**dims):
    return lambda whole: muonrt.torch.Muon([{"params": [("w", whole)], **dims}], **SIDED)


# For each tensor: its shape, its optimizer, and its matrices as outputs x inputs.
TENSORS = {
    "stack": ((3, 8, 5), of_role("stack"), lambda t: [*t]),
    "stack of stacks": ((2, 3, 8, 5), of_group(batch_dims=2), lambda t: [*t.flatten(0, 1)]),
    "kernel": ((4, 3, 2, 2), of_role("flatten"), lambda t: [t.flatten(1)]),
    "rows of several dimensions": ((2, 4, 5), of_group(row_dims=2), lambda t: [t.flatten(0, 1)]),
    "(in, out) by group": ((7, 24), of_group(transposed=True), lambda t: [t.T]),
    "(in, out) by role": ((7, 24), of_role({"transposed": True}), lambda t: [t.T]),
    "parts, (in, out)": ((5, 12), thirds, lambda t: t.T.split(4))}


@pytest.mark.parametrize("name", TENSORS)
def test_a_tensor_is_bitwise_identical_to_its_matrices(name):
    shape, make, matrices = TENSORS[name]
    whole = torch.nn.Parameter(drawn(0, *shape))
    alone = [torch.nn.Parameter(w.detach().contiguous().clone()) for w in matrices(whole)]
    one = make(whole)
    other = muonrt.torch.Muon([(f"m{i}", w) for i, w in enumerate(alone)], **SIDED)
    for step in range(1, 3):
        whole.grad = drawn(step, *shape)
        for w, grad in zip(alone, matrices(whole.grad)):
            w.grad = grad.contiguous().clone()
        one.step()
        other.step()
    assert one.last_report.orthogonalized == len(alone)
    assert all(torch.equal(w, v) for w, v in zip(matrices(whole), alone, strict=True))
    assert not torch.equal(whole, drawn(0, *shape))


def test_qk_clip_by_role():
    clip = muonrt.QkClip("q", layer=0, heads=2, head_dim=2, threshold=10.0)
    pair = [torch.nn.Parameter(drawn(0, 4, 5)) for _ in range(2)]
    ones = [muonrt.torch.Muon([("q", q)], role=lambda *_: ("muon", {"qk_clip": clip})) for q in pair]
    for q, one, logits in zip(pair, ones, (None, torch.tensor([40.0, 5.0]))):
        q.grad = drawn(1, 4, 5)
        one.step(qk_logits=logits)
    assert torch.equal(pair[1][2:], pair[0][2:]) and ones[1].last_report.clipped_heads == 1
    assert torch.allclose(pair[1][:2], pair[0][:2] / 2, rtol=1e-6)  # sqrt(10 / 40)


def test_one_qk_clip_for_a_model():
    # Two query heads of two rows share a key head. The learning rate is 0, so only QK-clip scales
    # the rows.
    sizes = {"q_proj.weight": 4, "k_proj.weight": 2, "v_proj.weight": 2, "q_proj.bias": 0}
    named = [(f"layers.{layer}.attn.{name}", torch.nn.Parameter(torch.ones((rows, 5) if rows else 4)))
             for layer in (0, 3) for name, rows in sizes.items()]
    one = muonrt.torch.Muon(named, 0.0, preset="muonclip", adamw_lr=0.0,
                            qk_clip=muonrt.QkClip(heads=2, kv_heads=1, head_dim=2, threshold=9.0))
    for _, p in named:
        p.grad = torch.ones_like(p)
    logits = {0: torch.tensor([36.0, 81.0]), 3: torch.tensor([8.0, 36.0])}
    with pytest.warns(UserWarning, match=r"layers \[7\]"):
        one.step(qk_logits=logits | {7: torch.ones(2)})
    assert one.last_report.clipped_heads == 3
    factors = [[1 / 2, 1 / 2, 1 / 3, 1 / 3], [1 / 3] * 2, [1] * 2, [1] * 4,
               [1, 1, 1 / 2, 1 / 2], [1 / 2] * 2, [1] * 2, [1] * 4]
    for (name, p), expected in zip(named, factors, strict=True):
        assert torch.allclose(p if p.dim() == 1 else p[:, 0], torch.tensor(expected, dtype=torch.float32)), name
    with pytest.raises(muonrt.InvalidArgumentError, match="layer 3 has None values, but 2 query heads"):
        one.step(qk_logits={0: logits[0]})
    with pytest.raises(muonrt.InvalidArgumentError, match="layer is 1, but kind is None"):
        muonrt.QkClip(layer=1, heads=2, head_dim=2)


RATIO = {"muon": {"scale_rule": "ratio"}}


@pytest.mark.parametrize("shapes, group, settings, named", [
    ({"c_attn": (7, 24), "c_proj": (24, 7)}, {}, RATIO, ["c_attn"]),  # warns only once
    ({"c_proj": (24, 7)}, {}, {"muon": {"normuon_axis": "rows"}}, ["c_proj"]),
    ({"c_fc": (7, 24)}, {}, {}, []),  # match_rms does not distinguish rows and columns
    ({"c_fc": (7, 24)}, {"transposed": True}, RATIO, []),
    ({"c_fc": (7, 24)}, {"transposed": False}, RATIO, []),
    ({"c_fc": (24, 7), "c_proj": (7, 24)}, {}, RATIO, [])])
def test_a_warning_about_conv1d_if_rows_and_columns_differ(shapes, group, settings, named):
    params = [(f"{name}.weight", torch.nn.Parameter(torch.ones(shape)))
              for name, shape in shapes.items()]
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        muonrt.torch.Muon([{"params": params, **group}], **settings)
    assert [str(w.message).split(":")[0] for w in found] == [f"param '{n}.weight'" for n in named]
