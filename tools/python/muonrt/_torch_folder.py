"""Saves and loads checkpoints of muonrt.torch.Muon in muonrt's format."""

import os
from collections.abc import Callable
from typing import Any

import torch

from muonrt import _torch_ranks as ranks


class Folders:
    """Implements the methods of muonrt.torch.Muon that save and load checkpoints in a folder."""

    def save(self, folder: str | os.PathLike, *, without_params: bool = False, keep: int = 1,
             overwrite: bool = False) -> None:
        """Saves a checkpoint that can be loaded on any mesh; see muonrt.Optimizer.save. Collective.

        The checkpoint contains neither learning rates nor parameters that do not require gradients.
        """
        self._of_folder(self._core.save, folder, without_params=without_params, keep=keep,
                        overwrite=overwrite)

    def load(self, folder: str | os.PathLike, *, manifest: str | None = None,
             without_params: bool = False, partial: bool = False) -> list[str]:
        """Loads a checkpoint; training then continues with bitwise identical results. Collective.

        See muonrt.Optimizer.load. Parameters are identified by the names that were passed to the
        constructor. If the checkpoint contains parameters, `load` overwrites the parameters of the
        model. Learning rates do not change; restore them with the scheduler. Returns notes about
        what the call has loaded, and about settings that differ.
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
        """Reserves host memory for the copy of the state that `save_begin` makes. Returns the
        number of bytes."""
        taken = self._core.save_reserve(without_params=without_params)
        self._reserved = without_params and self._reserved is not False
        return taken

    def save_begin(self, folder: str | os.PathLike, *, without_params: bool = False,
                   keep: int = 1, overwrite: bool = False) -> None:
        """Starts a save: copies the state, which a separate thread then writes while training
        continues. Collective."""
        self._of_folder(self._core.save_begin, folder, without_params=without_params, keep=keep,
                        overwrite=overwrite)
        self._saving = True

    def save_wait(self) -> None:
        """Waits until every rank has written its file, and makes this checkpoint the newest one in
        the folder. Collective."""
        try:
            self._core.save_wait()
        finally:
            self._saving = False

    def _of_folder(self, call: Callable, folder: str | os.PathLike, **options: Any):
        """Prepares the optimizer, and then runs `call`. If the preparation fails on any rank, all
        ranks raise its error."""
        def prepare():
            with ranks.on_device(self._device):
                self._follow()
            self._send_settings()

        self.wait()
        ranks.run_collectively(self._comm, prepare)
        ranks.settle(self._device)
        return call(folder, **options)
