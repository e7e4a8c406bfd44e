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
                       ({"params": [("f", torch.nn.Parameter(torch.ones(2), False))]}, "needs a gr"),
                       ({"lr": 1}, r"no 'params'; it has \['lr'\]"), ([], "is list; pass a dict"),
                       ({"params": [("m", fresh.float()[0])], "role": "muon",
                         "transposed": None}, "param 'm': transposed is None; give bool")):
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
    # One rank alone has a parameter of no known kind, or dtype: all are told.
    for shape, dtype, match in (((2, 3, 4, 5), torch.float32, "tell it by role="),
                                ((2, 3), torch.float16, "dtype float16")):
        bad = torch.nn.Parameter(torch.ones(shape, dtype=dtype) if rank == 1 else torch.ones(2, 3))
        with pytest.raises(muonrt.InvalidArgumentError, match=f"rank 1: .*{match}"):
            one.add_param_group({"params": [("bad", bad)]})
    gradients(m, 5)
    one.step()
    assert one.last_report.step == 5


def lone(m):
    """Two of the parameters, and an optimizer of them that has made a step."""
    pairs = list(m.named_parameters())
    one = muonrt.torch.Muon(pairs[:2], **SETTINGS)
    gradients(m, 0)
    one.step()
    return one, pairs


def test_what_a_caller_keeps_in_state_stays():
    m, n = Model(), Model()
    for x, key in ((m, "mine"), (n, None)):
        one, pairs = lone(x)
        if key:
            one.state[pairs[0][1]][key] = torch.ones(1)
        one.add_param_group({"params": pairs[2:]})
        if key:
            assert one.state[pairs[0][1]][key] == 1
        gradients(x, 1)
        one.step()
    assert all(torch.equal(p, q) for p, q in zip(m.parameters(), n.parameters()))


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_an_error_when_state_goes_over_leaves_all_as_it_was(monkeypatch, error):
    def fails(*_):
        raise error

    one, pairs = lone(Model())
    states = {p: dict(state) for p, state in one.state.items()}
    monkeypatch.setattr("muonrt._torch_state.State.go_on", fails)
    with pytest.raises((muonrt.Error, KeyboardInterrupt)):
        one.add_param_group({"params": pairs[2:]})
    assert [len(g["params"]) for g in one.param_groups] == [1, 1] and len(one._names) == 2
    assert all(one.state[p][key] is tensor for p in states for key, tensor in states[p].items())
    assert one.param_groups[0]["steps"] == 1
    if error is MemoryError:
        one.step()
        assert one.last_report.step == 2
    else:
        with pytest.raises(muonrt.AbortedError, match="interrupted by a signal"):
            one.step()


def test_a_save_under_way_is_waited_for(tmp_path):
    one, pairs = lone(Model())
    reserved = one.save_reserve()
    one.save_begin(tmp_path)
    with pytest.raises(muonrt.InvalidStateError, match="call save_wait first"):
        one.add_param_group({"params": pairs[2:]})
    one.save_wait()
    taken = []
    reserve = muonrt.Optimizer.save_reserve
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(muonrt.Optimizer, "save_reserve",
                      lambda core, **how: taken.append((how, reserve(core, **how))))
        one.add_param_group({"params": pairs[2:]})
    assert taken[0][0] == {"with_params": False} and taken[0][1] > reserved
    one.close()
    with pytest.raises(muonrt.InvalidStateError, match="optimizer is closed"):
        one.add_param_group({"params": pairs[2:]})


def test_swapped_memory_is_followed():
    linear = [torch.nn.Parameter(torch.full((2, 3), float(i))) for i in range(3)]
    one = muonrt.torch.Muon([(f"w{i}", p) for i, p in enumerate(linear)], lr=0.0)
    a, b, c = linear
    a.data, b.data, c.data = b.data, c.data, a.data
    for p in linear:
        p.grad = torch.ones(2, 3)
    one.step()
    assert [p.data_ptr() for p in linear] == [place[0] for place in one._places]
    b.data = a.data
    with pytest.raises(muonrt.InvalidArgumentError, match="'w1'"):
        one.step()


def test_roles_that_say_what_nothing_reads_are_refused():
    p = torch.nn.Parameter(torch.ones(2, 3))
    for role, match in ((("muon", {}, 1), "role .*use 'muon', 'adamw', or a pair"),
                        (("adamw", {"transposed": True}), "'adamw' with .'transposed'."),
                        (("muon", {"batch_dims": "x"}), "batch_dims is 'x'; give int")):
        with pytest.raises(muonrt.InvalidArgumentError, match=match):
            muonrt.torch.Muon([("w", p)], role=lambda *_: role)


def test_over_fsdp2():
    on_gloo(2, over_ranks, on_one_rank())
