"""Saves and loads checkpoints of muonrt.torch.Muon in muonrt's format."""

import os
from collections.abc import Callable
from typing import Any

import torch

from muonrt import _torch_ranks as ranks


class Folders:
    """The part of muonrt.torch.Muon that saves and loads checkpoints in a folder."""

    def save(self, folder: str | os.PathLike, *, without_params: bool = False, keep: int = 1,
             overwrite: bool = False) -> None:
        """Saves a checkpoint that can be loaded on any mesh; see muonrt.Optimizer.save. Collective.

        It contains neither learning rates nor parameters that need no gradient.
        """
        self._of_folder(self._core.save, folder, without_params=without_params, keep=keep,
                        overwrite=overwrite)

    def load(self, folder: str | os.PathLike, *, manifest: str | None = None,
             without_params: bool = False, partial: bool = False) -> list[str]:
        """Loads a checkpoint; training then continues with bitwise identical results. Collective.

        See muonrt.Optimizer.load. Parameters are identified by the names that were passed at
        creation. If the checkpoint contains parameters, the model's are overwritten. Learning rates
        do not change; restore them with the scheduler. Returns notes: what was found, and
        differences.
        """
        notes = self._of_folder(self._core.load, folder, manifest=manifest,
                                without_params=without_params, partial=partial)
        torch.autograd.graph.increment_version([ranks.local_of(p) for p in self._params])
        with torch.no_grad():
            self._write_back()
        self._state_tensors.read_steps()
        self._state_tensors.gather()
        return notes

    def save_reserve(self, *, without_params: bool = False) -> int:
        """Reserves host memory so that `save_begin` can return before the file is written. Returns
        the number of bytes."""
        taken = self._core.save_reserve(without_params=without_params)
        self._reserved = without_params and self._reserved is not False
        return taken

    def save_begin(self, folder: str | os.PathLike, *, without_params: bool = False,
                   keep: int = 1, overwrite: bool = False) -> None:
        """Starts a save, which a thread writes while steps continue. Collective."""
        self._of_folder(self._core.save_begin, folder, without_params=without_params, keep=keep,
                        overwrite=overwrite)
        self._saving = True

    def save_wait(self) -> None:
        """Waits until every rank has written its file, and makes the checkpoint the newest in the
        folder. Collective."""
        try:
            self._core.save_wait()
        finally:
            self._saving = False

    def _of_folder(self, call: Callable, folder: str | os.PathLike, **options: Any):
        """Calls `call` after a preparation. If the preparation raises on any rank, all ranks raise
        its error."""
        def prepare():
            with ranks.on_device(self._device):
                self._follow()
            self._send_settings()

        self.wait()
        ranks.run_collectively(self._comm, prepare)
        ranks.settle(self._device)
        return call(folder, **options)
