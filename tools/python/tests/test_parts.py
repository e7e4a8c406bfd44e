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


@pytest.mark.parametrize("transposed", [False, True])
def test_parts_move_as_matrices_by_themselves(transposed):
    # Groups of 2 rows of Q, K and V, one after the other.
    runs = [[(b + 2 * i, b + 2 * i + 2) for b in range(0, ROWS, 6)] for i in range(3)]
    lists = [np.concatenate([np.arange(*run) for run in r]) for r in runs]
    whole, grad = drawn(0, ROWS, COLS), drawn(1, ROWS, COLS)
    alone = [whole[rows].copy() for rows in lists]
    muonrt.Optimizer([muonrt.Param(f"m{i}", w, grad[rows].copy())
                      for i, (w, rows) in enumerate(zip(alone, lists))],
                     muon(), **textbook.EXACT).step(0.02)
    stored, as_stored = ((x.T if transposed else x).copy() for x in (whole, grad))
    parts = [muonrt.Part(n, rows=r) for n, r in zip("qkv", runs)]
    param = muonrt.Param("qkv", stored, as_stored, parts=parts, transposed=transposed)
    muonrt.Optimizer([param], muon(), **textbook.EXACT).step(0.02)
    got = stored.T if transposed else stored
    for w, rows in zip(alone, lists):
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


def attention(logits=None):
    """Q and K of one layer after a step."""
    q, k = drawn(3, HEADS * HEAD_DIM, COLS), drawn(4, HEADS * HEAD_DIM, COLS)
    clip = dict(layer=7, heads=HEADS, head_dim=HEAD_DIM, threshold=100.0, exponent=0.25)
    params = [muonrt.Param("q", q, drawn(5, *q.shape), qk_clip=muonrt.QkClip("q", **clip)),
              muonrt.Param("k", k, drawn(6, *k.shape), qk_clip=muonrt.QkClip("k", **clip))]
    with muonrt.Optimizer(params, muon(), **textbook.EXACT) as optimizer:
        report = optimizer.step(0.02, qk_logits=logits)
        return q, k, optimizer.clipped_heads(), report.clipped_heads


def test_qk_clip_multiplies_the_rows_of_a_head():
    plain_q, plain_k, none, _ = attention()
    assert none == []
    q, k, clipped, count = attention(np.array([50.0, 400.0], np.float32))
    assert clipped == [(7, 1)] and count == 1
    assert (q[:HEAD_DIM] == plain_q[:HEAD_DIM]).all()
    # gamma of head 1 is 100 / 400.
    np.testing.assert_allclose(q[HEAD_DIM:], plain_q[HEAD_DIM:] * 0.25**0.25, rtol=1e-6)
    np.testing.assert_allclose(k[HEAD_DIM:], plain_k[HEAD_DIM:] * 0.25**0.75, rtol=1e-6)


def test_qk_logits_are_counted():
    with pytest.raises(muonrt.InvalidArgumentError, match="qk_logits"):
        attention(logits=np.zeros(3, np.float32))
    with pytest.raises(muonrt.InvalidArgumentError, match="qk_logits has dtype float64"):
        attention(logits=np.zeros(2))
    with pytest.raises(muonrt.InvalidArgumentError, match="kind is 'qk'; use one of q, k"):
        muonrt.QkClip("qk", 0, 1)


def test_extents_of_the_state():
    def work(comm):
        layout = muonrt.Layout(muonrt.Mesh((2,)), "S(0)")
        shape, grad = (7, 4), drawn(8, 7, 4)
        w = np.zeros(layout.local_shape(shape, comm.rank), np.float32)
        param = muonrt.Param("w", w, cut(layout, grad, comm.rank, 2), shape=shape, layout=layout)
        optimizer = muonrt.Optimizer([param], muon(), comm)
        optimizer.step(0.02)
        (e,) = optimizer.state_extents()
        np.testing.assert_allclose(e.data.reshape(-1, 4), 0.05 * grad[slice(*e.runs[0][0])],
                                   rtol=1e-5)
        return e.param, e.kind, e.shape, e.runs, e.begin, e.end, tuple(e.written)

    first, second = on_threads(2, work)
    assert first == ("w", "momentum", [7, 4], [[(0, 4)], [(0, 4)]], 0, 16, (0, 16))
    assert second == ("w", "momentum", [7, 4], [[(4, 7)], [(0, 4)]], 0, 12, (0, 12))


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
