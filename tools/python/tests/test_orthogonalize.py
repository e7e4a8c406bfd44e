"""Tests muonrt.orthogonalize and muonrt.symmetric_product: arrays, settings, errors, and bitwise
equality with a step."""

import concurrent.futures
import os
from pathlib import Path

import numpy as np
import pytest

import muonrt

PAGE = Path(__file__).resolve().parents[1] / "NUMPY.md"


def drawn(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def update_of_step(x, transport="float32", **settings):
    """Returns the update of a step. If the weights are zero, and learning rate and scale are 1, the
    weights after the step are the negative update."""
    w = np.zeros_like(x)
    group = muonrt.Group("muon", weight_decay=0, momentum=0, nesterov=False, scale_rule="none",
                         **settings)
    muonrt.Optimizer([muonrt.Param("w", w, x)], [group], transport_dtype=transport).step(1.0)
    return 0 - w


@pytest.mark.parametrize("settings", [
    {}, dict(coefficients="keller_jordan", form="gram"), dict(steps=2, iteration_dtype="bfloat16"),
    dict(coefficients="custom", custom=[1.5, -0.5, 0], steps=1), dict(row_scaling="equilibrate")])
def test_has_the_bits_of_a_step(settings):
    for shape in (7, 12), (12, 7), (9, 9):
        x = drawn(1, *shape)
        assert (muonrt.orthogonalize(x, **settings) == update_of_step(x, **settings)).all()


def test_a_list_of_coefficients():
    x, triples = drawn(1, 7, 12), [(3.4445, -4.775, 2.0315)] * 2 + [np.array([1.875, -1.25, 0.375])]
    custom = dict(coefficients="custom", custom=np.ravel(triples), steps=3)
    assert (muonrt.orthogonalize(x, coefficients=triples) == muonrt.orthogonalize(x, **custom)).all()
    for bad in [(1, 2)], [(1, 2, 3)], 3 * [(1.5, -0.5, 0)]:
        with pytest.raises(muonrt.InvalidArgumentError, match="coefficient|custom"):
            muonrt.orthogonalize(x, coefficients=bad, steps=1)


def test_arrays_of_any_strides_and_batches():
    x = drawn(2, 3, 10, 16)
    kept = x.copy()
    expected = np.stack([muonrt.orthogonalize(m, threads=2) for m in x])
    assert np.abs(np.linalg.svd(expected, compute_uv=False) - 1).max() < 0.3
    wide, out = np.zeros((3, 10, 40), np.float32), np.zeros((10, 3, 16), np.float32)
    wide[:, :, 2:34:2] = x  # copied, because neither rows nor columns are contiguous
    for given in x, np.asfortranarray(x), wide[:, :, 2:34:2], x[::-1][::-1]:
        assert (muonrt.orthogonalize(given) == expected).all()
        result = out.transpose(1, 0, 2)
        assert muonrt.orthogonalize(given, out=result) is result
        assert (result == expected).all()
    assert (x == kept).all()
    square = x[:, :, :10]
    assert (muonrt.orthogonalize(square.transpose(0, 2, 1).copy()) ==
            muonrt.orthogonalize(square.transpose(0, 2, 1))).all()
    assert muonrt.orthogonalize(x, out=x) is x and (x == expected).all()
    assert (muonrt.orthogonalize(np.zeros((2, 3), np.float32)) == 0).all()
    assert muonrt.orthogonalize(np.zeros((0, 3, 4), np.float32)).shape == (0, 3, 4)


def test_halves():
    x = drawn(3, 8, 20).astype(np.float16)
    result = muonrt.orthogonalize(x)
    assert result.dtype == np.float16
    assert (result == muonrt.orthogonalize(x.astype(np.float32)).astype(np.float16)).all()
    brain = pytest.importorskip("ml_dtypes").bfloat16
    x = drawn(3, 8, 20).astype(brain)
    result, wide = muonrt.orthogonalize(x), x.astype(np.float32)
    assert result.dtype == brain
    assert (result.astype(np.float32) == update_of_step(wide, transport="bfloat16")).all()
    out = np.empty(x.shape, np.float32)
    assert (muonrt.orthogonalize(x, out=out).astype(brain) == result).all()


def test_symmetric_product():
    a, d = drawn(4, 2, 5, 9), drawn(5, 2, 5, 5)
    d += d.transpose(0, 2, 1)
    square = np.einsum("bij,bkj->bik", a.astype(np.float64), a)
    np.testing.assert_allclose(muonrt.symmetric_product(a), square, rtol=1e-5, atol=1e-5)
    got = muonrt.symmetric_product(a, d, alpha=-2, beta=0.5, threads=2)
    np.testing.assert_allclose(got, -2 * square + 0.5 * d, rtol=1e-5, atol=1e-4)
    assert (got == got.transpose(0, 2, 1)).all()
    assert muonrt.symmetric_product(a, d, alpha=-2, beta=0.5, out=d) is d and (d == got).all()


def test_rejected_arguments():
    x = drawn(6, 4, 6)
    unwritable = x.copy()
    unwritable.flags.writeable = False
    for bad, words in [
            (dict(out=drawn(6, 6, 4)), ["[6, 4]", "[4, 6]"]),
            (dict(out=unwritable), ["out", "read-only"]),
            (dict(out=drawn(6, 4, 12)[:, ::2]), ["out", "strides"]), (dict(out=[1.0]), ["out", "list"]),
            (dict(steps=99), ["steps is 99"]), (dict(threads=-1), ["threads is -1"])]:
        with pytest.raises(muonrt.InvalidArgumentError) as caught:
            muonrt.orthogonalize(x, **bad)
        assert all(word in str(caught.value) for word in words), str(caught.value)
    for bad in np.ones((4, 6)), np.ones(6, np.float32), np.ones((4, 6), np.uint16):
        with pytest.raises(muonrt.InvalidArgumentError, match="x: "):
            muonrt.orthogonalize(bad)
    with pytest.raises(TypeError, match="lr_factor.*coefficients"):
        muonrt.orthogonalize(x, lr_factor=2)
    kept = x.copy()
    x[2, 3] = np.nan
    with pytest.raises(muonrt.NonFiniteError, match=r"\[2, 3\]") as caught:
        muonrt.orthogonalize(x, out=kept)
    assert isinstance(caught.value, FloatingPointError) and np.isfinite(kept).all()


def test_threads_and_forked_children():
    xs = [drawn(10 + i, 30, 40) for i in range(8)]
    expected = [muonrt.orthogonalize(x) for x in xs]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for got, want in zip(pool.map(muonrt.orthogonalize, xs), expected):
            assert (got == want).all()
    child = os.fork()
    if child == 0:
        os._exit(0 if (muonrt.orthogonalize(xs[0]) == expected[0]).all() else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_torch_tensors():
    torch = pytest.importorskip("torch")
    x = drawn(7, 2, 6, 10)
    for dtype in torch.float32, torch.bfloat16, torch.float16:
        tensor = torch.from_numpy(x).to(dtype)
        result = muonrt.orthogonalize(tensor)
        assert result.dtype == dtype and result.shape == tensor.shape
        wide = muonrt.orthogonalize(tensor, out=torch.empty(tensor.shape))
        assert torch.equal(result, wide.to(dtype))
        if dtype == torch.float32:
            assert torch.equal(result, torch.from_numpy(muonrt.orthogonalize(x)))
        swapped = tensor.transpose(1, 2).contiguous().transpose(1, 2)
        assert torch.equal(muonrt.orthogonalize(swapped), result)
        product = muonrt.symmetric_product(tensor)
        full = tensor.float() @ tensor.float().mT
        assert torch.allclose(product.float(), full, rtol=0.01, atol=0.05)
        assert torch.equal(muonrt.orthogonalize(tensor, out=tensor), result)
    weight = torch.nn.Parameter(torch.from_numpy(x[0].copy()))
    with pytest.raises(muonrt.InvalidArgumentError, match="x requires grad.*detach"):
        muonrt.orthogonalize(weight)
    with pytest.raises(muonrt.InvalidArgumentError, match="out requires grad"):
        muonrt.orthogonalize(weight.detach(), out=weight)
    with torch.no_grad():
        assert muonrt.orthogonalize(weight, out=weight) is weight
    assert torch.equal(muonrt.orthogonalize(torch.from_numpy(x[0])), weight.detach())


def test_program_of_the_page():
    text = PAGE.read_text().split("## Newton-Schulz in your own optimizer")[1]
    names = {"muonrt": muonrt, "momentum": drawn(8, 6, 9)}
    exec(text.split("```python\n")[1].split("```")[0], names)
    assert (names["update"] == update_of_step(names["momentum"])).all()
    assert names["gram"].shape == (6, 6)
