"""muonrt.torch.Muon as trainers use it over ranks: checkpoints, scaling, faults."""

import pytest

torch = pytest.importorskip("torch")

from test_torch_ranks import Model, fsdp, inject, one_rank, optimizer  # noqa: E402
from torch_ranks import full, on_gloo  # noqa: E402

import muonrt  # noqa: E402
from muonrt._torch_ranks import local_of  # noqa: E402


def save(rank, size, folder, settings):
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict

    m = fsdp(Model(), size)
    one = optimizer(m, **settings)
    for step in range(2):
        inject(m, step)
        one.step()
    model_state, optimizer_state = get_state_dict(m, one)
    dcp.save({"model": model_state, "optimizer": optimizer_state}, checkpoint_id=folder)
    one.close()


def load(rank, size, folder, settings):
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    m = fsdp(Model(), size)
    with torch.no_grad():
        for p in m.parameters():
            p.zero_()
    one = optimizer(m, **settings)
    model_state, optimizer_state = get_state_dict(m, one)
    state = {"model": model_state, "optimizer": optimizer_state}
    dcp.load(state, checkpoint_id=folder)
    set_state_dict(m, one, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    assert one._core.steps == 2
    inject(m, 2)
    one.step()
    assert one.last_report.step == 3
    out = {name: full(p) for name, p in m.named_parameters()}
    one.close()
    return out


@pytest.mark.parametrize("settings, sizes", [({}, (2, 4)), ({"muon": {"normuon": "rows"}}, (2,))])
def test_a_dcp_checkpoint_of_3_ranks_goes_on_over_2_and_4(tmp_path, settings, sizes):
    on_gloo(3, save, str(tmp_path), settings)
    want, _ = one_rank(**settings)  # 3 steps
    for size in sizes:
        for got in on_gloo(size, load, str(tmp_path), settings):
            for name in want:
                assert got[name].tobytes() == want[name].tobytes(), name


def sit_out(rank, size):
    m = fsdp(Model(), size)
    one = optimizer(m)
    inject(m, 0)
    m.up.weight.grad = None  # on no rank
    before = full(m.up.weight)
    if rank == 1:
        m.down.weight.grad = None  # rank 0 has one: zero here
    one.step()
    assert (full(m.up.weight) == before).all()
    return one.last_report.step


def fails_on_one_rank(rank, size):
    m = fsdp(Model(), size)
    one = optimizer(m)
    inject(m, 0)
    if rank == 1:
        p = m.up.weight  # moves to columns that lie one after the other
        p._local_tensor = p._local_tensor.t().contiguous().t()
    try:
        one.step()
        return "no error"
    except muonrt.Error as error:
        return f"{type(error).__name__}: {error}"


def refused_on_one_rank(rank, size):
    m = Model()
    if rank == 1:
        with torch.device("meta"):
            m = Model()
    with pytest.raises(muonrt.InvalidArgumentError, match="rank 1.*meta"):
        optimizer(m)
    return True


def scaled(rank, size):
    """A GradScaler where one rank's gradients overflow: both skip, and go on together."""
    m = fsdp(Model(), size)
    one = optimizer(m)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    tokens = torch.arange(12) % 11
    found = []
    for overflows in (False, True, False):
        one.zero_grad()
        scaler.scale(torch.nn.functional.cross_entropy(m(tokens), tokens % 3)).backward()
        if overflows and rank == 1:
            local_of(m.up.weight.grad)[0, 0] = float("inf")
        before = full(m.up.weight)
        scaler.step(one)
        scaler.update()
        found.append(one.last_report.skipped)
        assert (full(m.up.weight) == before).all() == overflows
    return found


def faults(rank, size):
    return [work(rank, size) for work in
            (sit_out, fails_on_one_rank, scaled, refused_on_one_rank)]


def test_ranks_that_differ_get_an_answer_and_never_hang():
    sits, failed, skipped, refused = zip(*on_gloo(2, faults))
    assert sits == (1, 1) and refused == (True, True)
    assert skipped == ([False, True, False],) * 2
    assert "'up.weight'" in failed[1] and "row-major" in failed[1]
    assert failed[0].startswith("InvalidArgumentError") and "rank 1" in failed[0]


def a_rank_is_gone(rank, size):
    m = fsdp(Model(), size)
    one = optimizer(m, timeout_ms=20000)
    inject(m, 0)
    one.step()
    if rank == 1:
        one.close()
        return "gone"
    with pytest.raises(muonrt.Error, match="rank 1"):
        one.step()
    return "told"


def test_a_rank_that_is_gone_is_named():
    assert on_gloo(2, a_rank_is_gone) == ["told", "gone"]
