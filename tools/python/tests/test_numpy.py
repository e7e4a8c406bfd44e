"""Tests muonrt.Optimizer on NumPy arrays: whether settings, layouts and arrays reach the library,
and whether state_shards() reports the right places of the state."""

import numpy as np
import pytest

import muonrt
from ranks import on_threads

ROWS, COLS, STEPS = 13, 10, 4
MATRIX, VECTOR = (ROWS, COLS), (7,)
EXACT = dict(transport_dtype="float32", iteration_dtype="float32")


def drawn(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def weights():
    return drawn(1, *MATRIX), drawn(2, *VECTOR)


def gradients(step):
    return drawn(100 + step, *MATRIX), drawn(200 + step, *VECTOR)


def groups():
    return [muonrt.Group("muon"), muonrt.Group("adamw", lr_factor=0.1, weight_decay=0.01)]


def one_rank():
    w, v = weights()
    optimizer = muonrt.Optimizer([muonrt.Param("w", w), muonrt.Param("v", v, group=1)], groups(),
                                 **EXACT)
    for step in range(STEPS):
        optimizer.set_grads(gradients(step))
        report = optimizer.step(0.02)
    assert report.step == STEPS and report.orthogonalized == 1 and not report.skipped
    return w, v


def test_asynchronous_steps_have_the_bits_of_steps():
    want, (w, v) = one_rank(), weights()
    optimizer = muonrt.Optimizer([muonrt.Param("w", w), muonrt.Param("v", v, group=1)], groups(),
                                 **EXACT)
    with pytest.raises(muonrt.InvalidStateError, match="no step is in flight"):
        optimizer.wait()
    for step in range(STEPS):
        optimizer.set_grads(gradients(step))
        optimizer.step_async(0.02)
        for call in (lambda: optimizer.set_grads(gradients(step)), optimizer.state_shards,
                     lambda: setattr(optimizer, "steps", 7)):
            with pytest.raises(muonrt.InvalidStateError, match="a step is in flight"):
                call()
        assert optimizer.wait().step == step + 1
    assert (w == want[0]).all() and (v == want[1]).all()
    optimizer.step_async(-1.0)
    with pytest.raises(muonrt.InvalidArgumentError, match="lr"):
        optimizer.wait()
    with pytest.raises(muonrt.InvalidArgumentError, match="found_inf has shape"):
        optimizer.step_async(0.02, found_inf=np.zeros(2, np.float32))
    with pytest.raises(muonrt.InvalidArgumentError, match="args is N"):
        optimizer.step(0.02)  # rejected, so the next step is step 1
    optimizer.step_async(0.02, found_inf=np.ones(1, np.float32))
    assert optimizer.wait().skipped and optimizer.steps == STEPS
    optimizer.step_async(0.02)
    optimizer.close()
    assert (w != want[0]).all()


def test_settings_reach_the_rules():
    """Computes two steps in float64. With the coefficients (1, 0, 0) Newton-Schulz only
    normalizes."""
    w, v = weights()
    optimizer = muonrt.Optimizer(
        [muonrt.Param("w", w), muonrt.Param("v", v, group=1)],
        [muonrt.Group("muon", momentum=0.75, nesterov=False, weight_decay=0.5, steps=1,
                      coefficients="custom", custom=[1, 0, 0], normalize="max_eps",
                      scale_rule="original"),
         muonrt.Group("adamw", lr_factor=0.1, beta1=0.75, beta2=0.5, weight_decay=0.25)], **EXACT)
    want_w, want_v = w.astype(np.float64), v.astype(np.float64)
    momentum = mean = square = 0.0
    for step in range(2):
        optimizer.set_grads(gradients(step))
        optimizer.step(0.02)
        gw, gv = (g.astype(np.float64) for g in gradients(step))
        momentum = 0.75 * momentum + 0.25 * gw
        scale = np.sqrt(ROWS / COLS) / np.linalg.norm(momentum)
        want_w = (1 - 0.02 * 0.5) * want_w - 0.02 * scale * momentum
        mean, square = 0.75 * mean + 0.25 * gv, 0.5 * square + 0.5 * gv * gv
        update = mean / (1 - 0.75**(step + 1)) / np.sqrt(square / (1 - 0.5**(step + 1)))
        want_v = (1 - 0.002 * 0.25) * want_v - 0.002 * update
    np.testing.assert_allclose(w, want_w, atol=1e-6)
    np.testing.assert_allclose(v, want_v, atol=1e-6)
    np.testing.assert_allclose(optimizer.state("w", "momentum"), momentum, atol=1e-6)
    np.testing.assert_allclose(optimizer.state("v", "variance"), square, atol=1e-6)


def stepped(store=np.copy, load=np.copy, lr=0.02, param=None, **group):
    """Returns a matrix after one step. `store` converts the matrix before the step, and `load`
    converts it back."""
    w, grad = (np.ascontiguousarray(store(x[0])) for x in (weights(), gradients(0)))
    one = muonrt.Optimizer([muonrt.Param("w", w, grad, **param or {})],
                           [muonrt.Group("muon", **group)], **EXACT)
    assert not one.step(lr).skipped
    return np.ascontiguousarray(load(w)).tobytes()


def bfloat16(x):
    return x.astype(pytest.importorskip("ml_dtypes").bfloat16)


def bits(x):
    return x.view(np.uint16)


# The rows of the fused matrix: 2 rows of Q, 2 of K, 2 of V, and so on.
QKV = [muonrt.Part(n, rows=[(2 * i, 2 * i + 2), (2 * i + 6, 2 * i + 8)])
       for i, n in enumerate("qkv")]
SAME = {
    "custom coefficients": (
        dict(coefficients="keller_jordan"),
        dict(coefficients="custom", steps=5, custom=[3.4445, -4.7750, 2.0315] * 5)),
    "a rate for each group": (dict(lr=[0.02]), dict(lr=0.04, lr_factor=0.5, weight_decay=0.1)),
    "inputs x outputs": (
        dict(scale_rule="ratio"),
        dict(scale_rule="ratio", store=lambda x: x.T.reshape(2, COLS // 2, ROWS),
             load=lambda x: x.reshape(COLS, ROWS).T, param=dict(transposed=True, row_dims=2))),
    "parts": (
        dict(store=lambda x: x[:12], param=dict(parts=QKV)),
        dict(store=lambda x: x[:12].reshape(2, 3, 2, COLS).swapaxes(0, 1).reshape(3, 4, COLS),
             load=lambda x: x.reshape(3, 2, 2, COLS).swapaxes(0, 1).reshape(12, COLS),
             param=dict(view="stack"))),
    "bfloat16 as bits": (
        dict(store=bfloat16, load=bits),
        dict(store=lambda x: bits(bfloat16(x)), param=dict(dtype="bfloat16")))}


@pytest.mark.parametrize("name", SAME)
def test_equivalent_settings_have_bitwise_identical_results(name):
    first, second = (stepped(**how) for how in SAME[name])
    assert first == second != stepped(**SAME[name][0] | dict(lr=0.0))


def test_parts_have_factors():
    got = []
    for factor in (1.0, 0.5):
        w = np.zeros(MATRIX, np.float32)
        parts = [muonrt.Part(rows=(0, 4)),
                 muonrt.Part(rows=(4, ROWS), lr_factor=factor, scale_factor=factor)]
        param = muonrt.Param("w", w, gradients(0)[0], parts=parts)
        muonrt.Optimizer([param], groups()[:1]).step(0.02)
        got.append(w)
    assert (got[0] != 0).all() and (got[0][:4] == got[1][:4]).all()
    np.testing.assert_allclose(got[1][4:], got[0][4:] / 4, rtol=1e-6)


def attention(logits=None):
    """Returns Q of one layer after a step, with 2 heads of 3 rows, and the clipped heads."""
    q, clip = drawn(3, 6, 5), muonrt.QkClip("q", layer=7, heads=2, head_dim=3, exponent=0.25)
    optimizer = muonrt.Optimizer([muonrt.Param("q", q, drawn(5, 6, 5), qk_clip=clip)], groups()[:1])
    return q, optimizer.step(0.02, qk_logits=logits).clipped_heads, optimizer.clipped_heads()


def test_qk_clip_multiplies_the_rows_of_a_head():
    unclipped, *none = attention()
    q, *clipped = attention(np.array([50.0, 400.0], np.float32))
    assert none == [0, []] and clipped == [1, [(7, 1)]]
    assert (q[:3] == unclipped[:3]).all()
    # gamma of head 1 is 100 / 400.
    np.testing.assert_allclose(q[3:], unclipped[3:] * 0.25**0.25, rtol=1e-6)


# All forms of a layout that the binding accepts, over three ranks, as arguments of Mesh and of
# Layout.
RANKS = 3
FLAT = [(0, 0), (0, 65), (65, ROWS * COLS)]  # the first rank is empty
LAYOUTS = {
    "replicated": ({}, dict(placements="R")),
    "rows": ({}, dict(placements="(Shard(dim=0),)")),
    "columns": ({}, dict(placements=["S(1)"])),
    "strided": ({}, dict(placements="_StridedShard(dim=0, sf=2)")),
    "cuts": (dict(names=["dp"]), dict(cuts=[("dp", 0, 1, 3)])),
    "row bounds": ({}, dict(row_bounds=[0, 0, 0, ROWS])),
    "owner": ({}, dict(owner=2)),
    "flat": ({}, dict(flat=FLAT)),
    "ranks backwards": (dict(ranks=[2, 1, 0]), dict(placements="S(0)")),
}


def cut(layout, whole, rank, size):
    """Returns the shard of `rank`, from the index ranges of the layout."""
    lists = []
    for dim in range(whole.ndim):
        runs = layout.runs(whole.shape, rank, dim, size)
        lists.append([i for begin, end in runs for i in range(begin, end)])
    return np.ascontiguousarray(whole[np.ix_(*lists)])


def train(comm, layout, mine=cut, **settings):
    """Returns the local shards of a matrix in `layout` and of a replicated vector after STEPS steps."""
    whole, v = weights()
    gv = np.empty_like(v)
    w = mine(layout, whole, comm.rank, comm.size)
    params = [muonrt.Param("w", w, shape=MATRIX, layout=layout, **settings),
              muonrt.Param("v", v, gv, group=1)]
    with muonrt.Optimizer(params, groups(), comm, **EXACT) as optimizer:
        for step in range(STEPS):
            grad, gv[...] = gradients(step)
            if settings:  # partial gradients: half on each of the first two ranks
                optimizer.set_grad("w", grad * np.float32(0.5 if comm.rank < 2 else 0.0))
            else:
                optimizer.set_grad("w", mine(layout, grad, comm.rank, comm.size))
            optimizer.step(0.02)
    return w, v


def flat_range(_, whole, rank, size):
    return whole.ravel()[slice(*FLAT[rank])].copy()


@pytest.mark.parametrize("name", [*LAYOUTS, "partial gradients"])
def test_results_do_not_depend_on_the_layout(name):
    mesh, how = LAYOUTS[name if name in LAYOUTS else "replicated"]
    layout = muonrt.Layout(muonrt.Mesh((RANKS,), **mesh), **how)
    mine = flat_range if name == "flat" else cut
    settings = {} if name in LAYOUTS else dict(
        grad_layout=muonrt.Layout(muonrt.Mesh((RANKS,)), "Partial(sum)"))
    want_w, want_v = one_rank()
    for rank, (w, v) in enumerate(on_threads(
            RANKS, lambda comm: train(comm, layout, mine, **settings))):
        assert w.tobytes() == mine(layout, want_w, rank, RANKS).tobytes()
        assert v.tobytes() == want_v.tobytes()


def test_owners_of_a_stack():
    """If experts are sharded over ranks, the owner of each expert is one of the ranks that hold it,
    and the results are bitwise identical."""
    layout, whole, grad = muonrt.Layout(muonrt.Mesh((2,)), "S(0)"), drawn(8, 4, 5, 3), drawn(9, 4, 5, 3)

    def work(owner):
        def on(comm):
            mine = slice(2 * comm.rank, 2 * comm.rank + 2)
            w = whole[mine].copy()
            param = muonrt.Param("w", w, grad[mine].copy(), shape=whole.shape, layout=layout,
                                 view="stack", owner=owner)
            muonrt.Optimizer([param], groups()[:1], comm, **EXACT).step(0.02)
            return w.tobytes()
        return on_threads(2, on)

    assert work([0, 0, 1, 1]) == work([0, -1, 1, -1]) == work(-1)
    with pytest.raises(muonrt.InvalidArgumentError, match="owner 1 .* hold matrix 0"):
        work([1, 0, 1, 1])
    with pytest.raises(muonrt.InvalidArgumentError, match="3 ranks, but .* 4 matrices"):
        work((0, 0, 1))


def test_readings_of_placements_and_submeshes():
    mesh = muonrt.Mesh((3, 2), ["dp", "tp"])
    text = "(_StridedShard(dim=0, sf=2), Shard(dim=0))"
    ordered = muonrt.Layout(mesh, text, reading="ordered")
    # With 7 rows on dp=3, tp=2, the readings differ on the last two ranks (muonrt/strategies.h).
    assert ordered.runs((7, 1), 5, 0) == [(6, 7)] and ordered.runs((7, 1), 4, 0) == []
    assert muonrt.Layout(mesh, text).runs((7, 1), 4, 0) == [(6, 7)]
    assert ordered.local_shape((7, 4), 0) == [2, 4] and ordered.local_shape((7, 4), 5) == [1, 4]
    # Ranks 0 to 3 form a 2 x 2 mesh "dp, tp", and the layout uses only "dp".
    own = [(0, 2), (1, 3), (0, 2), (1, 3)]
    for ranks in own:
        layout = muonrt.Layout(muonrt.Mesh((2,), ["dp"], list(ranks)), "S(0)").lift(own)
        assert (layout.mesh.shape, layout.mesh.names) == ([2, 2], ["dp", "submeshes"])
        assert layout.mesh.ranks == [0, 1, 2, 3]
        rows = [layout.runs((5, 2), rank, 0) for rank in range(4)]
        assert rows == [[(0, 3)], [(0, 3)], [(3, 5)], [(3, 5)]]


def test_state_shards():
    layout = muonrt.Layout(muonrt.Mesh((2,)), "S(0)")

    def work(comm):
        grad = drawn(8, 7, 4)
        w, mine = (cut(layout, x, comm.rank, 2) for x in (np.zeros_like(grad), grad))
        one = muonrt.Optimizer([muonrt.Param("w", w, mine, shape=(7, 4), layout=layout)],
                               groups()[:1], comm)
        one.step(0.02)
        (s,) = one.state_shards()
        np.testing.assert_allclose(s.data.reshape(-1, 4), 0.05 * mine, rtol=1e-5)
        return s.param, s.kind, s.shape, s.runs, s.begin, s.end, tuple(s.write_range)

    assert on_threads(2, work) == [
        ("w", "momentum", [7, 4], [[(0, 4)], [(0, 4)]], 0, 16, (0, 16)),
        ("w", "momentum", [7, 4], [[(4, 7)], [(0, 4)]], 0, 12, (0, 12))]


def test_state_of_one_parameter():
    layout = muonrt.Layout(muonrt.Mesh((2,)), row_bounds=[0, 0, 7])  # the shard of rank 0 is empty
    partial = muonrt.Layout(muonrt.Mesh((2,)), "Partial(sum)")

    def work(comm):
        w = cut(layout, drawn(8, 7, 4), comm.rank, 2)
        params = [muonrt.Param("w", w, np.ones_like(w), shape=(7, 4), layout=layout),
                  muonrt.Param("p", np.ones((4, 3), np.float32), np.ones((4, 3), np.float32),
                               shape=(4, 3), grad_layout=partial)]
        one = muonrt.Optimizer(params, groups()[:1], comm)
        one.step(0.02)
        assert one.state("w", "momentum").shape == w.shape
        with pytest.raises(muonrt.NotSupportedError, match="'p': owners hold its momentum"):
            one.state("p", "momentum")
        if comm.rank == 1:
            with pytest.raises(muonrt.InvalidArgumentError, match="'w' has no variance"):
                one.state("w", "variance")
        with pytest.raises(muonrt.NotSupportedError, match="owners hold its normuon"):
            one.state("w", "normuon")

    on_threads(2, work)


def test_masters_are_reset_to_parameters_that_were_written():
    low, grad = np.full((4, 3), 0x3f80, np.uint16), np.full((4, 3), 0x3f00, np.uint16)
    optimizer = muonrt.Optimizer([muonrt.Param("w", low, grad, dtype="bfloat16")], groups()[:1])
    low[...] = 0x4000
    with pytest.raises(muonrt.InvalidArgumentError, match=r"; call optimizer.reset_masters\(\) after"):
        optimizer.step(0.02)
    optimizer.reset_masters(["w"])
    assert (optimizer.state("w", "master") == 2.0).all()
    assert not optimizer.step(0.02).skipped
