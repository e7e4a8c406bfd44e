"""add_param_group: parameters that join after steps; the others go on to the bit."""

import pytest

torch = pytest.importorskip("torch")

from test_torch_ranks import Model, cut_as, fsdp, inject, role, whole_gradient  # noqa: E402
from torch_ranks import full, on_gloo  # noqa: E402

import muonrt  # noqa: E402
import muonrt.torch  # noqa: E402
from muonrt._torch_ranks import local_of  # noqa: E402

LATE = ("up.weight", "up.bias")
SETTINGS = dict(lr=0.02, adamw_lr=0.01, role=role, muon={"normuon": "rows"})


def gradients(m, step):
    if m.up.weight.dtype == torch.float32:
        inject(m, step)
    else:
        for index, p in enumerate(m.parameters()):
            p.grad = whole_gradient(p, index, step).to(p.dtype)


def unfreeze(m):
    """Two steps without LATE, two with; LATE's gradients are there all the time."""
    late = [(n, p) for n, p in m.named_parameters() if n in LATE]
    for _, p in late:
        p.requires_grad_(False)
    one = muonrt.torch.Muon(m.named_parameters(), **SETTINGS)
    for step in range(2):
        gradients(m, step)
        one.step()
    for _, p in late:
        p.requires_grad_(True)
    one.add_param_group({"params": late, "lr": 0.05})
    for step in range(2, 4):
        gradients(m, step)
        one.step()
    return one


def on_one_rank(dtype=torch.float32):
    m = Model().to(dtype)
    unfreeze(m)
    return {name: full(p) for name, p in m.named_parameters()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_others_go_on_and_the_new_ones_begin(dtype):
    m = Model().to(dtype)
    one = unfreeze(m)
    # Beside it: those that were there take four steps, the late ones two of their own.
    rest, late = Model().to(dtype), Model().to(dtype)
    of = {}
    for n, model in (("rest", rest), ("late", late)):
        mine = [(k, p) for k, p in model.named_parameters() if (k in LATE) == (n == "late")]
        of[n] = muonrt.torch.Muon([{"params": mine, **({"lr": 0.05} if n == "late" else {})}],
                                  **SETTINGS)
    for step in range(4):
        gradients(rest, step)
        of["rest"].step()
        if step >= 2:
            gradients(late, step)
            of["late"].step()
    assert [g["lr"] for g in one.param_groups] == [0.02, 0.01, 0.05, 0.05]
    assert one.last_report.step == 4
    for (name, p), q, r in zip(m.named_parameters(), rest.parameters(), late.parameters()):
        assert torch.equal(p, r if name in LATE else q), name
        assert int(one.state[p]["step"]) == (2 if name == "up.bias" else 4)


def test_a_group_that_is_refused_leaves_the_optimizer_as_it_was():
    m, n = Model(), Model()
    ones = [muonrt.torch.Muon(x.named_parameters(), **SETTINGS) for x in (m, n)]
    fresh = torch.nn.Parameter(torch.ones(2, 3, 4, dtype=torch.float64))
    for bad, match in (({"params": [("again", m.up.weight)]}, "more than one parameter group"),
                       ({"params": [("deep", fresh)], "role": "muon"}, "dtype float64"),
                       ({"params": [("f", torch.nn.Parameter(torch.ones(2), False))]}, "needs a gr")):
        with pytest.raises(muonrt.InvalidArgumentError, match=match):
            ones[0].add_param_group(bad)
    for x, one in zip((m, n), ones):
        gradients(x, 0)
        one.step()
    assert len(ones[0].param_groups) == len(ones[1].param_groups)
    states = [one.state_dict()["state"] for one in ones]
    assert states[0].keys() == states[1].keys() and len(states[0]) == len(list(m.parameters()))
    assert torch.equal(states[0][0]["momentum_buffer"], states[1][0]["momentum_buffer"])
    assert all(torch.equal(p, q) for p, q in zip(m.parameters(), n.parameters()))


def over_ranks(rank, size, want):
    m = fsdp(Model(), size)
    one = unfreeze(m)
    for name, p in m.named_parameters():
        whole = cut_as(p, torch.from_numpy(want[name]))
        assert local_of(p).numpy().tobytes() == whole.numpy().tobytes(), name
    # One rank alone has a parameter of no known kind: all are told.
    bad = torch.nn.Parameter(torch.ones(2, 3, 4, 5) if rank == 1 else torch.ones(2, 3))
    with pytest.raises(muonrt.InvalidArgumentError, match="rank 1: .*tell it by role="):
        one.add_param_group({"params": [("bad", bad)]})
    gradients(m, 5)
    one.step()
    assert one.last_report.step == 5


def test_over_fsdp2():
    on_gloo(2, over_ranks, on_one_rank())
