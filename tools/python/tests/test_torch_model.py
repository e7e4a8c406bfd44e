"""Tests muonrt.torch.Muon with a model instead of names, describe(), and parameters whose role is
unknown."""

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch_models import drawn, same_bits  # noqa: E402

import muonrt  # noqa: E402
import muonrt.torch  # noqa: E402


class Tiny(nn.Module):
    """A model whose names are misleading: a table called w, a projection called embed."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.w = nn.Embedding(11, 8)
        self.kernel = nn.Conv1d(8, 12, 3)
        self.grouped = nn.Conv1d(12, 8, 3, groups=2)
        self.depthwise_one = nn.Conv1d(8, 8, 3, groups=8)
        self.norm = nn.LayerNorm(8)
        self.embed = nn.Linear(8, 6)
        self.scale = nn.Parameter(torch.ones(1, 8, 1))
        self.layers = nn.ModuleList([nn.Linear(6, 6, bias=False)])
        self.last_one = nn.Linear(6, 5)
        self.tied = nn.Linear(8, 11, bias=False)
        self.tied.weight = self.w.weight


ROLES = {"w.weight": ("adamw", "tied to the embedding 'w'"),
         "kernel.weight": ("muon, flatten", "kernel (Conv1d)"),
         "grouped.weight": ("muon, flatten, 2 parts", "kernel of 2 groups"),
         "depthwise_one.weight": ("adamw", "depthwise convolution (Conv1d)"),
         "embed.weight": ("muon", "matrix (Linear of a hidden size)"),
         "scale": ("adamw", "at most one dimension of (1, 8, 1) is greater than 1"),
         "layers.0.weight": ("muon", "matrix (Linear)")}


def described(one):
    head, *rows = [line.split("  ") for line in one.describe().splitlines()]
    assert [cell.strip() for cell in head if cell] == ["parameter", "shape", "role", "why"]
    return {row[0]: (row[-2], row[-1]) for row in
            ([cell.strip() for cell in row if cell.strip()] for row in rows)}


def test_a_model_in_place_of_names():
    m = Tiny()
    one = muonrt.torch.Muon(m, lr=1e-3)
    found = described(one)
    assert found.keys() == {name for name, _ in m.named_parameters()}
    assert {name: found[name] for name in ROLES} == ROLES
    for p in m.parameters():
        p.grad = torch.ones_like(p)
    one.step()
    # The kernel with two groups forms two matrices; `last_one` is not the last layer.
    assert one.last_report.orthogonalized == 6
    assert one.describe() == muonrt.torch.Muon(torch.compile(m), lr=1e-3).describe()


def test_the_head_is_the_last_linear_whose_outputs_no_module_takes():
    m = Tiny()
    del m.tied, m.w
    m.w = nn.EmbeddingBag(11, 8)
    found = described(muonrt.torch.Muon(m))
    assert found["last_one.weight"] == ("adamw", "output of the model, 5 values")
    assert found["w.weight"] == ("adamw", "embedding (EmbeddingBag)")
    m.add_module("back", nn.Linear(5, 8, bias=False))  # a hidden layer
    assert described(muonrt.torch.Muon(m))["last_one.weight"][0] == "muon"


def test_the_callers_role_wins():
    m = Tiny()
    one = muonrt.torch.Muon(m, role=lambda name, p: "adamw" if name == "kernel.weight" else None)
    assert described(one)["kernel.weight"] == ("adamw", "chosen by role=")
    one = muonrt.torch.Muon([{"params": m.layers.named_parameters(), "role": "adamw"}])
    assert described(one) == {"0.weight": ("adamw", "role of its group")}


def test_grouped_kernels_are_separate_matrices():
    whole = nn.Sequential(nn.Conv1d(12, 8, 3, groups=2, bias=False))
    with torch.no_grad():
        whole[0].weight.copy_(drawn(0, 8, 6, 3))
    halves = [nn.Parameter(h.detach().flatten(1).clone()) for h in whole[0].weight.chunk(2)]
    one = muonrt.torch.Muon(whole, lr=1e-2)
    other = muonrt.torch.Muon([(f"h{i}", h) for i, h in enumerate(halves)], lr=1e-2)
    whole[0].weight.grad = drawn(1, 8, 6, 3)
    for h, grad in zip(halves, whole[0].weight.grad.chunk(2)):
        h.grad = grad.flatten(1).clone()
    one.step()
    other.step()
    assert torch.equal(whole[0].weight.flatten(1), torch.cat(halves))


def test_a_later_group_is_known_by_its_modules():
    m, n = Tiny(), Tiny()
    for model in (m, n):
        model.w.weight.requires_grad_(False)
    one, other = (muonrt.torch.Muon(model) for model in (m, n))
    m.w.weight.requires_grad_(True)
    one.add_param_group({"params": [("w.weight", m.w.weight)]})
    assert described(one)["w.weight"] == ROLES["w.weight"]
    same_bits(m, n)
    other.close()


@pytest.mark.parametrize("name, shape, words", [
    ("attn.q", (2, 3, 4), r"'attn.q'.*3 dimensions of shape \(2, 3, 4\) .*return its role with role="),
    ("experts.w", (2, 3, 4, 5), "'experts.w'.*4 dimensions.*with role=.*'batch_dims'")])
def test_a_role_that_no_rule_decides_is_refused(name, shape, words):
    with pytest.raises(muonrt.InvalidArgumentError, match=words):
        muonrt.torch.Muon([(name, nn.Parameter(torch.ones(shape)))])


def test_a_parameter_without_a_name_is_refused():
    with pytest.raises(muonrt.InvalidArgumentError, match=r"shape \(12, 8, 3\) has no name.*named_parameters"):
        muonrt.torch.Muon([Tiny().kernel.weight])


# For tiny models of transformers: settings, and the number of matrices in a step.
TINY = {
    "MixtralForCausalLM": (dict(hidden_size=16, intermediate_size=24, num_hidden_layers=1, vocab_size=40,
                                num_attention_heads=2, num_key_value_heads=1, num_local_experts=3),
                           4 + 1 + 2 * 3),
    "GptOssForCausalLM": (dict(hidden_size=16, intermediate_size=24, num_hidden_layers=1, vocab_size=40,
                               num_attention_heads=2, num_key_value_heads=1, head_dim=8,
                               num_local_experts=3, layer_types=["full_attention"]), 4 + 1 + 2 * 3),
    "MambaForCausalLM": (dict(hidden_size=16, state_size=4, time_step_rank=2, num_hidden_layers=1,
                              vocab_size=40), 4),
    "ResNetForImageClassification": (dict(embedding_size=8, hidden_sizes=[8, 12], depths=[1, 1],
                                          layer_type="basic"), 5),
}


@pytest.mark.parametrize("name", TINY)
def test_models_of_transformers_need_no_option(name):
    transformers = pytest.importorskip("transformers")
    settings, matrices = TINY[name]
    kind = getattr(transformers, name)
    m = kind._from_config(kind.config_class(**settings))
    one = muonrt.torch.Muon(m, lr=1e-3)
    for p in m.parameters():
        p.grad = torch.ones_like(p)
    one.step()
    assert one.last_report.orthogonalized == matrices, one.describe()
