"""Tests `save` and `load` with NumPy arrays: arguments, notes, errors and memory use. The library's
own tests cover the format."""

import os

import numpy as np
import pytest

import muonrt
from ranks import on_threads
from test_numpy import COLS, EXACT, MATRIX, ROWS, cut, gradients, weights

HALF, ALL = 3, 6  # steps


class Trainer:
    """Trains a matrix that is sharded by rows, and a replicated vector. The gradients depend only
    on the step."""

    def __init__(self, comm=None, lr_factor=0.1, more=(), scale=1.0):
        self.rank, self.size = (comm.rank, comm.size) if comm else (0, 1)
        self.layout = muonrt.Layout(muonrt.Mesh((self.size,)), "S(0)")
        whole, self.v = (scale * x for x in weights())
        self.w = self.mine(whole)
        params = [muonrt.Param("w", self.w, shape=MATRIX, layout=self.layout),
                  muonrt.Param("v", self.v, group=1)]
        params += [muonrt.Param(name, np.ones(3, np.float32), group=1) for name in more]
        groups = [muonrt.Group("muon"), muonrt.Group("adamw", lr_factor=lr_factor)]
        self.optimizer = muonrt.Optimizer(params, groups, comm, **EXACT)

    def mine(self, whole):
        return cut(self.layout, whole, self.rank, self.size)

    def steps(self, first, last):
        for step in range(first, last):
            w, v = gradients(step)
            self.optimizer.set_grads([self.mine(w), v])
            # The vector is inactive in step 1, so that its update count differs from the step.
            self.optimizer.step(0.02, inactive_params=[1] if step == 1 else [])
        return self


def test_a_background_save_on_two_ranks_continues_on_one_bit_for_bit(tmp_path):
    def work(comm):
        one = Trainer(comm).steps(0, HALF)
        reserved = one.optimizer.save_reserve()
        one.optimizer.save_begin(tmp_path)
        with pytest.raises(muonrt.InvalidStateError, match="a save is"):
            one.optimizer.save(tmp_path)
        one.steps(HALF, ALL)
        assert one.optimizer.save_wait() is None
        return reserved

    # The files contain the weights, one momentum and the vector's two moments. Each replica writes
    # a part.
    assert sum(on_threads(2, work)) == 4 * (2 * ROWS * COLS + 3 * 7)
    want, one = Trainer().steps(0, ALL), Trainer(scale=0.0)  # load() overwrites the zero weights
    momentum = one.optimizer.state("w", "momentum")
    (found,) = one.optimizer.load(tmp_path)
    # `momentum` is an array over this memory.
    assert found.startswith("parameters: 2 loaded (") and momentum.any()
    assert (one.optimizer.steps, one.optimizer.update_counts) == (HALF, [HALF, HALF - 1])
    one.steps(HALF, ALL)
    assert one.w.tobytes() == want.w.tobytes() and one.v.tobytes() == want.v.tobytes()
    assert (momentum == want.optimizer.state("w", "momentum")).all()


def test_options_and_notes(tmp_path):
    trainer = Trainer()
    for step in range(3):
        trainer.steps(step, step + 1)
        trainer.optimizer.save(tmp_path, keep=2)
    (older,) = (path.name for path in tmp_path.glob("manifest-*.json"))
    with pytest.raises(muonrt.InvalidArgumentError, match="the values of param 'w' differ"):
        Trainer().optimizer.load(tmp_path, without_params=True)
    one = Trainer(lr_factor=0.25, more=["u"]).optimizer
    with pytest.raises(muonrt.InvalidArgumentError, match="'u' is not in the checkpoint"):
        one.load(tmp_path)
    notes = one.load(tmp_path, manifest=older, partial=True)
    assert one.steps == 2 and one.update_counts == [2, 1, 0] and len(notes) == 3
    for word in ("'u'", "is initialized", "'v'", "lr_factor", "0.25", "0.1"):
        assert word in "".join(notes), notes


def test_folders_and_rejected_arguments(tmp_path):
    one = Trainer().optimizer
    for folder in (tmp_path / "path", str(tmp_path / "str"), os.fsencode(tmp_path / "bytes")):
        one.save(folder, without_params=True)
        assert one.load(folder, without_params=True) == []
    other = Trainer(more=["u"]).optimizer
    with pytest.raises(muonrt.InvalidArgumentError, match="another model: param 'u' is not in it"):
        other.save(tmp_path / "str")
    other.save(tmp_path / "str", overwrite=True)
    counters = other.counters()
    assert 0 < counters["saved_param_bytes"] < counters["saved_bytes"]
    assert sorted(os.listdir(tmp_path)) == ["bytes", "path", "str"]
    calls = (one.save, one.save_begin, one.load)
    for call in calls:
        for folder in (3, None, "a\0b"):
            with pytest.raises(TypeError):
                call(folder)
    with pytest.raises(OSError, match="nowhere/manifest.json"):
        one.load(tmp_path / "nowhere")
    (tmp_path / "path" / "manifest.json").write_text("{}")
    with pytest.raises(muonrt.CorruptError, match="manifest.json"):
        one.load(tmp_path / "path")
    one.close()
    for call in (*calls, lambda folder: one.save_wait(), lambda folder: one.save_reserve()):
        with pytest.raises(muonrt.InvalidStateError, match="closed"):
            call(tmp_path)
