"""Parts of fused matrices, QK-clip, extents of state, ranks that meet in a folder."""

import threading

import numpy as np
import pytest

import muonrt
import textbook
from ranks import on_threads
from test_numpy import cut

HEADS, HEAD_DIM, COLS = 2, 3, 5
ROWS = 3 * HEADS * HEAD_DIM  # Q, K and V


def drawn(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def muon(**settings):
    return [muonrt.Group("muon", scale_rule="original", **settings)]


def qkv(rows):
    third = ROWS // 3
    return {"thirds": [muonrt.Part("q", rows=(0, third)), muonrt.Part("k", rows=(third, 2 * third)),
                       muonrt.Part("v", rows=[(2 * third, ROWS)])],
            # Groups of 2 rows of each, one after the other.
            "interleaved": [muonrt.Part(n, rows=[(b + 2 * i, b + 2 * i + 2)
                                                 for b in range(0, ROWS, 6)])
                            for i, n in enumerate("qkv")]}[rows]


def rows_of(how):
    third = ROWS // 3
    if how == "thirds":
        return [np.arange(i * third, (i + 1) * third) for i in range(3)]
    return [np.concatenate([np.arange(b + 2 * i, b + 2 * i + 2) for b in range(0, ROWS, 6)])
            for i in range(3)]


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("how", ["thirds", "interleaved"])
def test_parts_move_as_matrices_by_themselves(how, transposed):
    whole, grad = drawn(0, ROWS, COLS), drawn(1, ROWS, COLS)
    alone = [whole[rows].copy() for rows in rows_of(how)]
    muonrt.Optimizer([muonrt.Param(f"m{i}", w, grad[rows].copy())
                      for i, (w, rows) in enumerate(zip(alone, rows_of(how)))],
                     muon(), **textbook.EXACT).step(0.02)
    stored = (whole.T if transposed else whole).copy()
    as_stored = np.ascontiguousarray(grad.T if transposed else grad)

    def work(comm):
        layout = muonrt.Layout(muonrt.Mesh((2,)), "S(0)")
        w = cut(layout, stored, comm.rank, 2)
        param = muonrt.Param("qkv", w, cut(layout, as_stored, comm.rank, 2), shape=stored.shape,
                             layout=layout, parts=qkv(how), transposed=transposed)
        with muonrt.Optimizer([param], muon(), comm, **textbook.EXACT) as optimizer:
            optimizer.step(0.02)
        return w

    got = np.concatenate(on_threads(2, work))
    got = got.T if transposed else got
    for w, rows in zip(alone, rows_of(how)):
        assert np.ascontiguousarray(got[rows]).tobytes() == w.tobytes()


def test_parts_have_factors_and_tile_the_matrix():
    w, grad = np.zeros((4, 3), np.float32), drawn(2, 4, 3)
    parts = [muonrt.Part(rows=(0, 2)), muonrt.Part(rows=(2, 4), lr_factor=0.5, scale_factor=0.5)]
    plain, scaled = w.copy(), w.copy()
    for into, these in ((plain, [muonrt.Part(rows=(0, 2)), muonrt.Part(rows=(2, 4))]),
                        (scaled, parts)):
        muonrt.Optimizer([muonrt.Param("w", into, grad, parts=these)], muon()).step(0.02)
    assert (scaled[:2] == plain[:2]).all() and (plain != 0).all()
    np.testing.assert_allclose(scaled[2:], plain[2:] / 4, rtol=1e-6)
    with pytest.raises(muonrt.InvalidArgumentError, match="param 'w'"):
        muonrt.Optimizer([muonrt.Param("w", w, grad, parts=parts[:1])], muon())


def attention(comm=None, logits=None):
    """Q and K of one layer after a step; `logits` of this rank."""
    q, k = drawn(3, HEADS * HEAD_DIM, COLS), drawn(4, HEADS * HEAD_DIM, COLS)
    clip = dict(layer=7, heads=HEADS, head_dim=HEAD_DIM, threshold=100.0, exponent=0.25)
    params = [muonrt.Param("q", q, drawn(5, *q.shape), qk_clip=muonrt.QkClip("q", **clip)),
              muonrt.Param("k", k, drawn(6, *k.shape), qk_clip=muonrt.QkClip("k", **clip))]
    with muonrt.Optimizer(params, muon(), comm, **textbook.EXACT) as optimizer:
        report = optimizer.step(0.02, qk_logits=logits)
        return q, k, optimizer.clipped_heads(), report.clipped_heads


def test_qk_clip_multiplies_the_rows_of_a_head():
    plain_q, plain_k, none, _ = attention()
    assert none == []
    # Head 0 is seen by one rank, head 1 by the other; gamma of head 1 is 100 / 400.
    seen = [[50.0, -np.inf], [-np.inf, 400.0]]
    for q, k, clipped, count in on_threads(
            2, lambda comm: attention(comm, np.array(seen[comm.rank], np.float32))):
        assert clipped == [(7, 1)] and count == 1
        assert (q[:HEAD_DIM] == plain_q[:HEAD_DIM]).all()
        np.testing.assert_allclose(q[HEAD_DIM:], plain_q[HEAD_DIM:] * 0.25**0.25, rtol=1e-6)
        np.testing.assert_allclose(k[HEAD_DIM:], plain_k[HEAD_DIM:] * 0.25**0.75, rtol=1e-6)


def test_qk_logits_are_counted():
    with pytest.raises(muonrt.InvalidArgumentError, match="qk_logits"):
        attention(logits=np.zeros(3, np.float32))
    with pytest.raises(muonrt.InvalidArgumentError, match="qk_logits has dtype float64"):
        attention(logits=np.zeros(2))
    with pytest.raises(muonrt.InvalidArgumentError, match="kind is 'qk'; use one of q, k"):
        muonrt.QkClip("qk", 0, 1)


def test_extents_hold_each_element_of_the_state_once():
    shape = (7, 4)

    def work(comm):
        layout = muonrt.Layout(muonrt.Mesh((comm.size,)), "S(0)")
        w = np.zeros(layout.local_shape(shape, comm.rank), np.float32)
        v = np.zeros(5, np.float32)
        params = [muonrt.Param("w", w, shape=shape, layout=layout),
                  muonrt.Param("v", v, group=1)]
        optimizer = muonrt.Optimizer(params, muon() + [muonrt.Group("adamw")], comm)
        optimizer.set_grads([cut(layout, drawn(8, *shape), comm.rank, comm.size), drawn(9, 5)])
        optimizer.step(0.02)
        return [(e.param, e.kind, e.shape, e.runs, e.begin, e.end, e.written, e.data.copy())
                for e in optimizer.state_extents()]

    found = {}
    for extents in on_threads(3, work):
        for param, kind, whole, runs, begin, end, written, data in extents:
            into = found.setdefault((param, kind), np.full(whole, np.nan, np.float32))
            lists = [[i for b, e in r for i in range(b, e)] for r in runs]
            held = np.ravel_multi_index(np.ix_(*lists), tuple(whole)).ravel()[begin:end]
            assert data.shape == (end - begin,)
            mine = held[written[0]:written[1]]
            assert np.isnan(into.ravel()[mine]).all()  # nobody else writes it
            into.ravel()[mine] = data[written[0]:written[1]]
    assert set(found) == {("w", "momentum"), ("v", "momentum"), ("v", "variance")}
    np.testing.assert_allclose(found["w", "momentum"], 0.05 * drawn(8, *shape), rtol=1e-5)
    np.testing.assert_allclose(found["v", "momentum"], 0.1 * drawn(9, 5), rtol=1e-5)


def met(tmp_path, secrets):
    out = [None] * len(secrets)

    def run(rank):
        try:
            with muonrt.Comm.folder(rank, len(secrets), str(tmp_path), "run-1",
                                    secret=secrets[rank], timeout=20) as c:
                out[rank] = c.allgather(bytes([rank]))
        except muonrt.Error as error:
            out[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(len(secrets))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return out


def test_ranks_meet_in_a_folder(tmp_path):
    assert met(tmp_path, [b"a secret"] * 3) == [[b"\0", b"\1", b"\2"]] * 3
    assert list(tmp_path.iterdir()) == []
    assert met(tmp_path, [None] * 2) == [[b"\0", b"\1"]] * 2
    (tmp_path / "run-1").write_text("of another run")
    with pytest.raises(muonrt.InvalidStateError, match="run-1"):
        muonrt.Comm.folder(0, 2, str(tmp_path), "run-1")
    with pytest.raises(muonrt.InvalidArgumentError, match="run id"):
        muonrt.Comm.folder(0, 2, str(tmp_path), "run/1")


@pytest.mark.parametrize("rows", [slice(0, 4), [], [4], "x"])
def test_rows_that_are_none_name_the_part(rows):
    with pytest.raises(muonrt.InvalidArgumentError, match="part 'q': rows is .*give .begin, end."):
        muonrt.Part("q", rows=rows)
