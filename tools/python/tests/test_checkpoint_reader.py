"""Tests `muonrt.Checkpoint`: whole tensors of a sharded checkpoint, and errors. The library's own
tests cover every kind of damage."""

import json

import numpy as np
import pytest

import muonrt
from ranks import on_threads
from test_checkpoint import Trainer


def test_tensors_of_two_ranks_have_the_values_of_one(tmp_path):
    one = Trainer().steps(0, 3)
    on_threads(2, lambda comm: Trainer(comm).steps(0, 3).optimizer.save(tmp_path))
    with muonrt.Checkpoint(tmp_path) as checkpoint:
        assert checkpoint.verify() is None and checkpoint.problems() == []
        facts = (checkpoint.steps, checkpoint.with_params, checkpoint.format_version,
                 checkpoint.n_files)
        assert facts == (3, True, 1, 2)
        assert checkpoint.nbytes == sum(p.stat().st_size for p in tmp_path.glob("*.safetensors"))
        tensors = checkpoint.tensors()
        assert [(t.param, t.kind) for t in tensors] == [
            ("w", "param"), ("w", "momentum"), ("v", "param"), ("v", "momentum"),
            ("v", "variance")]
        for t in tensors:
            array = checkpoint.read(t.param, t.kind)
            state = one.optimizer.state(t.param, t.kind) if t.kind != "param" else \
                {"w": one.w, "v": one.v}[t.param]
            assert array.dtype == np.float32 and array.tobytes() == state.tobytes()
            assert list(array.shape) == t.shape == list(state.shape)
            assert (t.dtype, t.nbytes, t.has_data) == ("float32", array.nbytes, True)
            assert t.n_parts == (2 if t.param == "w" else 1)
            assert t.role == ("muon" if t.param == "w" else "adamw")
            assert t.update_count == (3 if t.param == "w" else 2)
            assert (t.momentum_kind, t.momentum) == ("ema", 0.95 if t.param == "w" else 0.9)
            assert f"{t.hash:016x}" in checkpoint.manifest()
        assert json.loads(checkpoint.manifest())["step"] == 3
        kept = checkpoint.read("w")
    kept += 1  # the array does not belong to the checkpoint
    with pytest.raises(muonrt.InvalidStateError, match="the checkpoint is closed"):
        checkpoint.read("w")


def test_kept_checkpoints_and_errors(tmp_path):
    assert muonrt.Checkpoint.list_manifests(tmp_path) == []
    trainer = Trainer()
    for step in range(2):
        trainer.steps(step, step + 1).optimizer.save(tmp_path, keep=2, without_params=True)
    names = muonrt.Checkpoint.list_manifests(str(tmp_path))
    assert names == ["manifest.json", "manifest-0000000001-0000000000000001.json"]
    assert [muonrt.Checkpoint(tmp_path, name).steps for name in names] == [2, 1]
    checkpoint = muonrt.Checkpoint(tmp_path)
    assert not checkpoint.with_params and not checkpoint.tensors()[0].has_data
    with pytest.raises(muonrt.InvalidArgumentError, match="only its hash"):
        checkpoint.read("w")
    with pytest.raises(muonrt.InvalidArgumentError, match="there is no param 'x'"):
        checkpoint.read("x", "momentum")
    with pytest.raises(muonrt.InvalidArgumentError, match="'w' has no variance"):
        checkpoint.read("w", "variance")
    with pytest.raises(muonrt.InvalidArgumentError, match="moment"):
        checkpoint.read("w", "moment")
    with pytest.raises(muonrt.InvalidArgumentError, match="leave out the path"):
        muonrt.Checkpoint(tmp_path, "a/manifest.json")
    with pytest.raises(muonrt.IoError, match="manifest.json"):
        muonrt.Checkpoint(tmp_path / "no")
    (newest,) = json.loads(checkpoint.manifest())["files"]
    path = tmp_path / newest["name"]
    whole = bytearray(path.read_bytes())
    whole[-1] ^= 1
    path.write_bytes(whole)
    for work in (checkpoint.verify, lambda: muonrt.Checkpoint(tmp_path).read("w", "momentum")):
        with pytest.raises(muonrt.CorruptError, match=f"{newest['name']}.*bytes 0 to"):
            work()
    assert len(checkpoint.problems()) == 1 and newest["name"] in checkpoint.problems()[0]
