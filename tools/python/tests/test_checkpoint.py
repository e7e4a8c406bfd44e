"""Checkpoints of NumPy arrays: saved on two ranks, loaded on others, the same bits as without."""

import json
import os

import numpy as np
import pytest

import muonrt
import textbook
from ranks import on_threads
from test_numpy import COLS, MATRIX, ROWS, cut, gradients, weights

HALF, ALL = 3, 6  # steps


class Trainer:
    """Rows of a matrix, and a vector that every rank holds; gradients follow from the step."""

    def __init__(self, comm, lr_factor=0.1, more=(), scale=1.0):
        self.rank, self.size = comm.rank, comm.size
        self.layout = muonrt.Layout(muonrt.Mesh((self.size,)), "S(0)")
        whole, self.v = (scale * x for x in weights())
        self.w = self.mine(whole)
        params = [muonrt.Param("w", self.w, shape=MATRIX, layout=self.layout),
                  muonrt.Param("v", self.v, group=1)]
        groups = [muonrt.Group("muon", **textbook.MUON),
                  muonrt.Group("adamw", lr_factor=lr_factor, weight_decay=0.01)]
        params += [muonrt.Param(name, np.ones(3, np.float32), group=1) for name in more]
        self.optimizer = muonrt.Optimizer(params, groups, comm, **textbook.EXACT)

    def mine(self, whole):
        return cut(self.layout, whole, self.rank, self.size)

    def steps(self, first, last):
        for step in range(first, last):
            w, v = gradients(step)
            more = [np.ones(3, np.float32)] * (len(self.optimizer.names) - 2)
            self.optimizer.set_grads([self.mine(w), v, *more])
            # The vector has fewer updates than there are steps.
            self.optimizer.step(0.02, without_grad=[1] if step == 1 else [])

    def bits(self):
        return self.w.tobytes(), self.v.tobytes()


def on(size, work):
    """[work(a Trainer) of every rank]."""
    return on_threads(size, lambda comm: work(Trainer(comm)))


def alone(**settings):
    return Trainer(muonrt.Comm.self(), **settings)


def uninterrupted(trainer, steps=ALL):
    trainer.steps(0, steps)
    return trainer.w, trainer.v


def saved(folder, **options):
    def work(trainer):
        trainer.steps(0, HALF)
        assert trainer.optimizer.save(folder, **options) is None
        return trainer.bits()

    return on(2, work)


@pytest.mark.parametrize("size", [1, 4])
def test_a_checkpoint_goes_on_over_other_ranks_to_the_last_bit(tmp_path, size):
    saved(tmp_path, with_params=True)
    want_w, want_v = uninterrupted(alone())

    def work(comm):
        trainer = Trainer(comm, scale=0.0)  # its weights are the checkpoint's
        notes = trainer.optimizer.load(tmp_path)
        counts = trainer.optimizer.steps, trainer.optimizer.updates
        trainer.steps(HALF, ALL)
        return notes, counts, trainer.bits()

    for rank, (notes, counts, (w, v)) in enumerate(on_threads(size, work)):
        layout = muonrt.Layout(muonrt.Mesh((size,)), "S(0)")
        assert notes == [] and counts == (HALF, [HALF, HALF - 1])
        assert w == cut(layout, want_w, rank, size).tobytes() and v == want_v.tobytes()


def test_the_arrays_of_state_are_the_same_memory_after_a_load(tmp_path):
    saved(tmp_path, with_params=True)
    first, second = alone(), alone()
    first.steps(0, HALF)
    momentum = second.optimizer.state("w", "momentum")
    second.optimizer.load(tmp_path)
    assert momentum.any() and (momentum == first.optimizer.state("w", "momentum")).all()


def test_parameters_come_with_the_state_or_must_be_those_it_was_saved_with(tmp_path):
    saved(tmp_path / "state")
    saved(tmp_path / "both", with_params=True)
    changed = alone(scale=2.0)
    before = changed.bits()
    for folder, options in (("state", {}), ("both", dict(without_params=True))):
        with pytest.raises(muonrt.InvalidArgumentError, match="param 'w' has other values"):
            changed.optimizer.load(tmp_path / folder, **options)
        assert changed.bits() == before and changed.optimizer.steps == 0
        same = alone()
        same.w[...], same.v[...] = uninterrupted(alone(), HALF)
        same.optimizer.load(tmp_path / folder, **options)
        same.steps(HALF, ALL)
        want_w, want_v = uninterrupted(alone())
        assert same.bits() == (want_w.tobytes(), want_v.tobytes())


def test_a_changed_setting_is_noted(tmp_path):
    saved(tmp_path, with_params=True)
    notes = alone(lr_factor=0.25).optimizer.load(tmp_path)
    assert len(notes) == 1
    for word in ("param 'v'", "lr_factor", "0.25", "0.1"):
        assert word in notes[0], notes


def test_what_is_absent_is_refused_or_noted(tmp_path):
    saved(tmp_path, with_params=True)
    trainer = alone(more=["u"])
    with pytest.raises(muonrt.InvalidArgumentError, match="'u' is not in it"):
        trainer.optimizer.load(tmp_path)
    assert trainer.optimizer.steps == 0
    notes = trainer.optimizer.load(tmp_path, partial=True)
    assert any("'u'" in note and "anew" in note for note in notes), notes
    assert trainer.optimizer.updates == [HALF, HALF - 1, 0]


def test_a_flipped_byte_is_found_and_the_file_named(tmp_path):
    saved(tmp_path, with_params=True)
    files = sorted(tmp_path.glob("[!.]*"))
    assert [path.suffix for path in files] == [".json", ".safetensors", ".safetensors"]
    trainer = alone()
    before = trainer.bits()
    for path in files:
        good = path.read_bytes()
        bad = bytearray(good)
        bad[-9] ^= 1
        path.write_bytes(bad)
        with pytest.raises(muonrt.CorruptError, match=path.name):
            trainer.optimizer.load(tmp_path)
        path.write_bytes(good)
        assert trainer.bits() == before and trainer.optimizer.steps == 0
    trainer.optimizer.load(tmp_path)


def contents(folder):
    """What the ranks' files say, and the manifest but for their names, which are drawn by lot."""
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["crc32c"]
    for file in manifest["files"]:
        del file["name"]
    return manifest, sorted(path.read_bytes() for path in folder.glob("*.safetensors"))


@pytest.mark.parametrize("with_params", [False, True])
def test_what_is_saved_while_steps_go_on_is_what_was_when_it_began(tmp_path, with_params):
    def work(trainer):
        one = trainer.optimizer
        taken = one.save_reserve(with_params=with_params)
        trainer.steps(0, HALF)
        one.save(tmp_path / "at_once", with_params=with_params)
        one.save_begin(tmp_path / "beside", with_params=with_params)
        with pytest.raises(muonrt.InvalidStateError, match="under way"):
            one.save(tmp_path / "at_once", with_params=with_params)
        trainer.steps(HALF, ALL)
        assert not (tmp_path / "beside" / "manifest.json").exists()
        assert one.save_wait() is None
        with pytest.raises(muonrt.InvalidStateError, match="no save is under way"):
            one.save_wait()
        return taken, trainer.w, trainer.v

    results = on(2, work)
    # One momentum, two moments of the vector; replicas share what they write.
    floats = ROWS * COLS + 2 * 7 + (ROWS * COLS + 7 if with_params else 0)
    assert sum(taken for taken, _, _ in results) == 4 * floats
    want_w, want_v = uninterrupted(alone())
    assert np.concatenate([w for _, w, _ in results]).tobytes() == want_w.tobytes()
    assert all(v.tobytes() == want_v.tobytes() for _, _, v in results)
    assert contents(tmp_path / "beside") == contents(tmp_path / "at_once")


def test_older_ones_stay_if_asked(tmp_path):
    trainer = alone()
    for step in range(3):
        trainer.steps(step, step + 1)
        trainer.optimizer.save(tmp_path, with_params=True, keep=2)
    older = [path.name for path in tmp_path.glob("manifest-*.json")]
    assert len(older) == 1
    later = alone()
    for manifest, step in ((None, 3), (older[0], 2)):
        later.optimizer.load(tmp_path, manifest=manifest)
        assert later.optimizer.steps == step


def test_folders_and_what_is_refused(tmp_path):
    one = alone().optimizer
    for folder in (tmp_path / "path", str(tmp_path / "str"), os.fsencode(tmp_path / "bytes")):
        one.save(folder)
        assert one.load(folder) == []
    assert sorted(os.listdir(tmp_path)) == ["bytes", "path", "str"]
    for folder in (3, None, "a\0b"):
        for call in (one.save, one.save_begin, one.load):
            with pytest.raises(TypeError):
                call(folder)
    with pytest.raises(muonrt.IoError, match="nowhere/manifest.json"):
        one.load(tmp_path / "nowhere")
    with pytest.raises(OSError, match="nowhere"):
        one.save(tmp_path / "nowhere" / "folder")
    with pytest.raises(muonrt.InvalidArgumentError, match="keep is 0"):
        one.save(tmp_path / "path", keep=0)
    with pytest.raises(muonrt.InvalidArgumentError, match="manifest is '../manifest.json'"):
        one.load(tmp_path / "path", manifest="../manifest.json")
    with pytest.raises(TypeError):
        one.save(tmp_path, True)
    one.save_reserve()
    one.save_begin(tmp_path / "lost")
    one.close()  # what is under way goes with it
    assert os.listdir(tmp_path / "lost") == [".muonrt-lock"]
    for call in (lambda: one.save(tmp_path), lambda: one.load(tmp_path), one.save_wait,
                 one.save_reserve, lambda: one.save_begin(tmp_path)):
        with pytest.raises(muonrt.InvalidStateError, match="closed"):
            call()
