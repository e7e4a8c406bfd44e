"""NumPy arrays: values against the textbook, bits against one rank, over layouts and transports."""

import numpy as np
import pytest

import muonrt
import textbook
from ranks import on_processes, on_threads

ROWS, COLS, STEPS = 13, 10, 4
MATRIX, VECTOR = (ROWS, COLS), (7,)


def weights():
    rng = np.random.default_rng(1)
    return rng.standard_normal(MATRIX, np.float32), rng.standard_normal(VECTOR, np.float32)


def gradients(step):
    rng = np.random.default_rng(100 + step)
    return rng.standard_normal(MATRIX, np.float32), rng.standard_normal(VECTOR, np.float32)


def groups():
    return [muonrt.Group("muon", **textbook.MUON),
            muonrt.Group("adamw", lr_factor=0.1, weight_decay=0.01)]


def one_rank():
    w, v = weights()
    gw, gv = np.empty_like(w), np.empty_like(v)
    optimizer = muonrt.Optimizer(
        [muonrt.Param("w", w, gw), muonrt.Param("v", v, gv, group=1)], groups(),
        **textbook.EXACT)
    for step in range(STEPS):
        gw[...], gv[...] = gradients(step)
        report = optimizer.step(0.02)
    assert report.step == STEPS and report.orthogonalized == 1 and not report.skipped
    return w, v


def test_muon_and_adamw_match_the_textbook():
    w, v = weights()
    muon, adamw = textbook.Muon(w), textbook.AdamW(v)
    for step in range(STEPS):
        gw, gv = gradients(step)
        muon.step(gw, 0.02)
        adamw.step(gv, 0.1 * 0.02)
    got_w, got_v = one_rank()
    # f32 against f64: products of 13 terms in 5 steps, 4 times.
    np.testing.assert_allclose(got_w, muon.weight, atol=2e-6)
    np.testing.assert_allclose(got_v, adamw.weight, atol=1e-6)


def test_inputs_by_outputs_move_as_the_transpose():
    (w, _), (g, _) = weights(), gradients(0)
    there, back = w.copy(), np.ascontiguousarray(w.T).reshape(2, COLS // 2, ROWS)
    grad = np.ascontiguousarray(g.T).reshape(back.shape)
    optimizer = muonrt.Optimizer(
        [muonrt.Param("out_in", there, g),
         muonrt.Param("in_out", back, grad, transposed=True, row_dims=2)],
        [muonrt.Group("muon", scale_rule="ratio")])
    optimizer.step(0.02)
    assert (there != w).all() and (back.reshape(COLS, ROWS).T == there).all()


def cut(layout, whole, rank, size):
    """What `rank` holds of `whole`, by the layout's own lists of indices."""
    lists = []
    for dim in range(whole.ndim):
        runs = layout.runs(whole.shape, rank, dim, size)
        lists.append([i for begin, end in runs for i in range(begin, end)])
    return np.ascontiguousarray(whole[np.ix_(*lists)])


# Every way in which the binding takes a layout, over three ranks: arguments of Mesh and of Layout.
RANKS = 3
LAYOUTS = {
    "replicated": ({}, dict(placements="R")),
    "rows": ({}, dict(placements="(Shard(dim=0),)")),
    "columns": ({}, dict(placements=["S(1)"])),
    "strided": ({}, dict(placements="_StridedShard(dim=0, sf=2)")),
    "cuts": (dict(names=["dp"]), dict(cuts=[("dp", 0, 1, 3)])),
    "row bounds": ({}, dict(row_bounds=[0, 0, 0, ROWS])),
    "owner": ({}, dict(owner=2)),
    "ranks backwards": (dict(ranks=[2, 1, 0]), dict(placements="S(0)")),
}


def train(comm, layout):
    """Local shards after STEPS steps of a matrix in `layout` and a replicated vector."""
    rank, size = comm.rank, comm.size
    whole, v = weights()
    w, gv = cut(layout, whole, rank, size), np.empty_like(v)
    params = [muonrt.Param("w", w, shape=MATRIX, layout=layout),
              muonrt.Param("v", v, gv, group=1)]
    with muonrt.Optimizer(params, groups(), comm, **textbook.EXACT) as optimizer:
        for step in range(STEPS):
            whole_gradient, gv[...] = gradients(step)
            optimizer.set_grad("w", cut(layout, whole_gradient, rank, size))
            optimizer.step(0.02)
    return w, v


@pytest.mark.parametrize("name", LAYOUTS)
def test_bits_do_not_depend_on_the_layout(name):
    mesh, how = LAYOUTS[name]
    layout = muonrt.Layout(muonrt.Mesh((RANKS,), **mesh), **how)
    want_w, want_v = one_rank()
    for rank, (w, v) in enumerate(on_threads(RANKS, lambda comm: train(comm, layout))):
        assert w.tobytes() == cut(layout, want_w, rank, RANKS).tobytes()
        assert v.tobytes() == want_v.tobytes()


def test_flat_ranges():
    ranges = [(0, 0), (0, 65), (65, ROWS * COLS)]  # the first rank is empty
    layout = muonrt.Layout(muonrt.Mesh((RANKS,)), flat=ranges)

    def work(comm):
        begin, end = ranges[comm.rank]
        whole, _ = weights()
        w = whole.ravel()[begin:end].copy()
        param = muonrt.Param("w", w, shape=MATRIX, layout=layout)
        optimizer = muonrt.Optimizer([param], groups()[:1], comm, **textbook.EXACT)
        for step in range(STEPS):
            optimizer.set_grads([gradients(step)[0].ravel()[begin:end]])
            optimizer.step(0.02)
        return w

    joined = np.concatenate(on_threads(RANKS, work))
    assert joined.tobytes() == one_rank()[0].tobytes()


def rows_over_processes(comm):
    return train(comm, muonrt.Layout(muonrt.Mesh((comm.size,)), "S(0)"))


def test_processes_over_tcp():
    results = on_processes(3, rows_over_processes)
    assert np.concatenate([w for w, _ in results]).tobytes() == one_rank()[0].tobytes()


def test_partial_gradients_are_summed():
    def work(comm):
        w, _ = weights()
        layout = muonrt.Layout(muonrt.Mesh((2,)), "R")
        param = muonrt.Param("w", w, shape=MATRIX, layout=layout,
                             grad_layout=muonrt.Layout(muonrt.Mesh((2,)), "Partial(sum)"))
        optimizer = muonrt.Optimizer([param], groups()[:1], comm, **textbook.EXACT)
        halves = gradients(0)[0] * np.float32(0.5)
        optimizer.set_grad(0, halves)
        optimizer.step(0.02)
        return w

    w, _ = weights()
    whole = muonrt.Optimizer([muonrt.Param("w", w, gradients(0)[0])], groups()[:1],
                             **textbook.EXACT)
    whole.step(0.02)
    for got in on_threads(2, work):
        assert got.tobytes() == w.tobytes()


def test_weights_written_late_are_taken_when_asked():
    low, grad = np.full((4, 3), 0x3f80, np.uint16), np.full((4, 3), 0x3f00, np.uint16)
    optimizer = muonrt.Optimizer([muonrt.Param("w", low, grad, dtype="bfloat16")], groups()[:1])
    low[...] = 0x4000
    with pytest.raises(muonrt.InvalidArgumentError, match="take_params"):
        optimizer.step(0.02)
    assert (low == 0x4000).all()
    optimizer.take_params(["w"])
    assert (optimizer.state("w", "master") == 2.0).all()
    assert not optimizer.step(0.02).skipped


def test_an_array_that_moves_is_bound_anew():
    (w, _), (gw, _) = weights(), gradients(0)
    optimizer = muonrt.Optimizer([muonrt.Param("w", w, gw)], groups()[:1])
    optimizer.step(0.02)
    left, before, w = w, w.tobytes(), w.copy()
    optimizer.set_data("w", w)
    frozen = w.copy()
    frozen.flags.writeable = False
    for bad, words in ((w.T.copy(), r"\(10, 13\), not \(13, 10\)"), (frozen, "read-only"),
                       (gw, "grad")):
        with pytest.raises(muonrt.InvalidArgumentError, match=f"param 'w': data.*{words}"):
            optimizer.set_data("w", bad)
    optimizer.step(0.02)
    assert left.tobytes() == before != w.tobytes()


def test_bfloat16_as_bits_and_as_ml_dtypes():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    w, _ = weights()
    results = []
    for form in ("bits", "ml_dtypes"):
        low = w.astype(ml_dtypes.bfloat16)
        grad = gradients(0)[0].astype(ml_dtypes.bfloat16)
        if form == "bits":
            low, grad = low.view(np.uint16), grad.view(np.uint16)
            param = muonrt.Param("w", low, grad, dtype="bfloat16")
        else:
            param = muonrt.Param("w", low, grad)
        optimizer = muonrt.Optimizer([param], groups()[:1])
        optimizer.step(0.02)
        master = optimizer.state("w", "master")
        assert master.dtype == np.float32
        assert (master.astype(ml_dtypes.bfloat16).view(np.uint16) == low.view(np.uint16)).all()
        results.append(low.tobytes())
    assert results[0] == results[1]


def test_state_moves_to_another_optimizer():
    w, v = weights()
    first = muonrt.Optimizer([muonrt.Param("w", w), muonrt.Param("v", v, group=1)], groups())
    for step in range(2):
        first.set_grads(list(gradients(step)))
        first.step(0.02, without_grad=[1] if step == 0 else [])
    assert first.updates == [2, 1]
    second_w, second_v = w.copy(), v.copy()
    second = muonrt.Optimizer(
        [muonrt.Param("w", second_w), muonrt.Param("v", second_v, group=1)], groups())
    for name, kind in (("w", "momentum"), ("v", "momentum"), ("v", "variance")):
        second.state(name, kind)[...] = first.state(name, kind)
    second.steps = first.steps
    second.updates = first.updates
    for optimizer in (first, second):
        optimizer.set_grads(list(gradients(2)))
        optimizer.step(0.02)
    assert w.tobytes() == second_w.tobytes() and v.tobytes() == second_v.tobytes()
