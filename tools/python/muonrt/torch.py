"""muonrt.torch.Muon: a torch.optim.Optimizer over plain tensors and DTensors."""

import atexit
import contextlib
import os
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch

import muonrt
from muonrt import _presets, _torch_groups
from muonrt import _torch_ranks as ranks
from muonrt._presets import names as presets  # noqa: F401
from muonrt._torch_roles import CHANGING, DEFAULTS, Role, describe, of_model, warn_of_conv1d
from muonrt._torch_state import State

_alive: "weakref.WeakSet[Muon]" = weakref.WeakSet()


def _memory_of(tensor: torch.Tensor) -> tuple:
    """Identifies the memory of a tensor and its interpretation."""
    return tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()


class Muon(torch.optim.Optimizer):
    """Updates matrices with Muon and all other parameters with AdamW, sharded as the parameters are.

    Creation, step, save and load are collective: call them on all ranks.

    :param params: the model, ``model.named_parameters()``, or groups: dicts with "params" (pairs of
        name and parameter) and any of the settings below. A group may also have "role" ("muon" or
        "adamw" for all of its parameters) and say how the tensors of its matrices are read:
        "transposed" (True: stored as inputs x outputs), "batch_dims" and "row_dims" (see
        muonrt.Param). Parameters are float32 or bfloat16, all in host memory or all on one CUDA
        device. DTensors (FSDP2, HSDP, TP) keep their placements. Parameters that need no gradient
        are ignored.
    :param lr: learning rate. With the default scale of Muon's updates, "match_rms", it holds for both
        halves and is one of AdamW's. Default: 3e-4; with another "scale_rule" 0.02.
    :param adamw_lr: learning rate of AdamW, if it differs. Another "scale_rule" needs it.
    :param weight_decay: weight decay of Muon. Default: 0.1.
    :param adamw_weight_decay: weight decay of AdamW. Default: 0.01.
    :param momentum: momentum of Muon. Default: 0.95.
    :param nesterov: whether Muon uses Nesterov momentum. Default: True.
    :param betas: betas of AdamW. Default: (0.9, 0.95).
    :param eps: epsilon of AdamW. Default: 1e-8.
    :param preset: name of a published optimizer, such as "moonlight"; see muonrt.torch.presets().
        Settings that are passed here replace those of the preset.
    :param role: a function of name and parameter that returns the role and, if needed, how the tensor
        is read: "muon"; "adamw"; ("muon", "stack") for experts x rows x columns; ("muon", "flatten")
        for convolution kernels; or ("muon", {...}) with settings of muonrt.Param, such as
        "transposed", "parts" or "qk_clip", which replace those of the group. "layout" and "shape" are
        for plain tensors that are shards. None: embeddings, output heads, norms and vectors get AdamW,
        by the modules of the model if it is passed, otherwise by name; see describe().
    :param muon: further settings of muonrt.Group for Muon, such as {"coefficients":
        "keller_jordan"}. They are fixed.
    :param adamw: further settings of muonrt.Group for AdamW. They are fixed.
    :param process_group: the ranks that hold the parameters. None: all ranks. With pipeline
        parallelism, create one optimizer per stage.
    :param interface: on several machines, the name or address of the interface at which the group's
        first rank listens. Default: GLOO_SOCKET_IFNAME, or any of its addresses that answers.
    :param comm: a muonrt.Comm over the same ranks, to use instead of a new one. For CUDA tensors it
        is one of Comm.nccl or Comm.staged.
    :param options: settings of muonrt.Optimizer, such as clip_norm. threads is
        torch.get_num_threads() by default.

    On CUDA a step waits for the current stream. When `step` returns, its work has ended, so the
    current stream need not wait.

    By default the Newton-Schulz iteration uses float32 (on CUDA bfloat16), and ranks exchange
    bfloat16. For the values of torch.optim.Muon set iteration_dtype="bfloat16",
    transport_dtype="float32" and muon={"coefficients": "keller_jordan", "normalize": "max_eps",
    "scale_rule": "original"}.
    """

    describe = describe
    _step_supports_amp_scaling = True  # a GradScaler sets grad_scale and found_inf before a step

    def __init__(self, params: "Iterable | torch.nn.Module", lr: float | None = None, *,
                 adamw_lr: float | None = None, weight_decay: float | None = None,
                 adamw_weight_decay: float | None = None, momentum: float | None = None,
                 nesterov: bool | None = None, betas: tuple[float, float] | None = None,
                 eps: float | None = None, preset: str | None = None,
                 role: Role | None = None, muon: dict[str, Any] | None = None,
                 adamw: dict[str, Any] | None = None, process_group=None,
                 interface: str | None = None, comm: muonrt.Comm | None = None, **options: Any):
        given = {"muon": dict(lr=lr, weight_decay=weight_decay, momentum=momentum,
                              nesterov=nesterov),
                 "adamw": dict(lr=adamw_lr, weight_decay=adamw_weight_decay, betas=betas, eps=eps)}
        self._core = None
        self._saving = False
        self._reserved: bool | None = None  # with_params of save_reserve(); None: not called
        self._names: list[str] = []
        self._param_settings: list[dict[str, Any]] = []
        found = _presets.preset(preset) if preset else {"muon": {}, "adamw": {}}
        if "muon" not in found:
            found, role = found | {"muon": {}}, lambda name, p: "adamw"
        fixed = {"muon": muon or {}, "adamw": adamw or {}}
        self._fixed = {kind: {k: v for k, v in found[kind].items() if k not in CHANGING[kind]}
                       | fixed[kind] for kind in CHANGING}
        for kind in CHANGING:
            of_preset = {k: v for k, v in found[kind].items() if k in CHANGING[kind]}
            own = {k: v for k, v in given[kind].items() if v is not None}
            given[kind] = DEFAULTS[kind] | of_preset | own
        params, role = of_model(params, role)
        _torch_groups.set_rates(given, found, lr, adamw_lr, self._fixed["muon"])
        groups = self._split(params, role, given)
        warn_of_conv1d(groups, self._param_settings, self._fixed["muon"])
        super().__init__(groups, {k: given["muon"][k] for k in ("lr", "weight_decay")})
        self._params = [p for group in self.param_groups for p in group["params"]]
        self._device = ranks.local_of(self._params[0]).device
        options.setdefault("threads", min(torch.get_num_threads(), 256))
        with ranks.on_device(self._device):
            self._comm, world = (comm, list(range(comm.size))) if comm \
                else ranks.comm_of(self._device, process_group, interface)
            self._made_with = given, role, {r: i for i, r in enumerate(world)}, options
            self._create()
            self._state_tensors = State(self)
        self.last_report: muonrt.StepReport | None = None
        _alive.add(self)

    def _split(self, params: Iterable, role: Role | None, given: dict) -> list[dict]:
        """Returns torch's param_groups, and adds the names and settings of the parameters."""
        out = []
        for kind, named, settings in _torch_groups.split(params, role, given, self._fixed["muon"]):
            self._names += [name for name, _, _ in named]
            self._param_settings += [of_param for _, of_param, _ in named]
            out.append({"params": [(name, p) for name, _, p in named], "role": kind,
                        **given[kind], **settings})
            if kind == "muon":  # for readers of the state
                out[-1]["momentum_kind"] = self._fixed[kind].get("momentum_kind", "ema")
        return out

    def _group_settings(self, group: dict) -> dict:
        """Returns a param_group as settings of muonrt.Group, without the rate, which each step passes."""
        out = {"weight_decay": float(group["weight_decay"])}
        if group["role"] == "muon":
            return out | {"momentum": float(group["momentum"]), "nesterov": bool(group["nesterov"])}
        return out | {"beta1": float(group["betas"][0]), "beta2": float(group["betas"][1]),
                      "adamw_eps": float(group["eps"])}

    def _create(self) -> None:
        _, _, number, options = self._made_with
        everywhere = ranks.run_collectively(self._comm, lambda: [
            self._placement(name, p, number) for name, p in zip(self._names, self._params)])
        if len({len(e) for e in everywhere}) > 1:
            raise muonrt.MismatchError(
                "the number of parameters that need a gradient differs between ranks: "
                f"{[len(e) for e in everywhere]}; pass the same parameters on every rank")
        self._sent = [self._group_settings(g) for g in self.param_groups]
        groups = [muonrt.Group(g["role"], **sent, **self._fixed[g["role"]])
                  for g, sent in zip(self.param_groups, self._sent)]
        params = []
        of_group = [i for i, g in enumerate(self.param_groups) for _ in g["params"]]

        def describe():
            for i, (name, p) in enumerate(zip(self._names, self._params)):
                placements = [
                    e[i] and ranks.TensorPlacement(tuple(e[i][0]), tuple(e[i][1]), e[i][2])
                    for e in everywhere]
                layout = ranks.layout_of(name, p, placements, self._comm.rank)
                settings = {"shape": tuple(p.shape), "layout": layout} | self._param_settings[i]
                params.append(muonrt.Param(name, ranks.local_of(p), group=of_group[i], **settings))

        ranks.run_collectively(self._comm, describe)
        ranks.settle(self._device)  # the creation copies parameters to master weights
        self._core = muonrt.Optimizer(params, groups, self._comm, **options)
        self._memory = [_memory_of(ranks.local_of(p)) for p in self._params]

    def _placement(self, name: str, p: torch.Tensor, number: dict[int, int]):
        device = ranks.local_of(p).device
        if device.type not in ("cpu", "cuda"):
            raise muonrt.InvalidArgumentError(f"param '{name}' is on device '{device}'; put it in "
                                              "host memory or on a CUDA device")
        if device != self._device:
            raise muonrt.InvalidArgumentError(
                f"param '{name}' is on device '{device}', but param '{self._names[0]}' is on "
                f"'{self._device}'; put all parameters on one device")
        found = ranks.placement_of(name, p, number)
        return found and (found.mesh_shape, found.ranks, found.placements)

    def add_param_group(self, param_group: dict) -> None:
        """Adds a group of parameters, for example of layers that are unfrozen. Collective.

        The group is a dict as at creation. A new plan is made. State, update counts and rates of the
        other parameters do not change; those of the new parameters start at their initial values.
        During the call both states are in memory. No save may be in progress.
        """
        enter = super().add_param_group
        if self._core is None:
            return enter(param_group)
        _torch_groups.add(self, param_group, enter)

    def step(self, closure: Callable[[], Any] | None = None, *,
             qk_logits: torch.Tensor | None = None):
        """Runs one step, which updates every parameter or none. Collective.

        `last_report` is the report of the step. A parameter that has no gradient on any rank does not
        take part in the step. If only some ranks have a gradient, a missing one counts as zero.

        :param closure: a function that computes the gradients and returns the loss.
        :param qk_logits: float32, for "qk_clip" of a role: the largest logit of each query head on
            this rank, as for muonrt.Optimizer.step.
        :return: the loss of the closure, or None.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with torch.no_grad(), ranks.on_device(self._device):
            try:
                self._follow()
                self._send_settings()
                grads = [self._gradient(p) for p in self._params]
                self._core.set_grads(grads)
                rates = [float(group["lr"]) for group in self.param_groups]
                given = self._scaler() | {"stream": ranks.stream_of(self._device)}
                if qk_logits is not None:
                    given["qk_logits"] = torch.as_tensor(
                        qk_logits, dtype=torch.float32, device=self._device).contiguous()
            except Exception:
                self._vote_to_reject()
                raise
            except BaseException:  # Ctrl-C
                self._comm.abort("interrupted by a signal")
                raise
            self.last_report = self._step(grads, rates, given)
            if not self.last_report.skipped:
                torch.autograd.graph.increment_version(
                    [ranks.local_of(p) for g, p in zip(grads, self._params) if g is not None])
                self._state_tensors.read_steps()
        return loss

    def _follow(self) -> None:
        """Binds parameters that have moved in memory (`p.data = ...`) again."""
        rejected = []
        for i, p in enumerate(self._params):
            local = ranks.local_of(p)
            if _memory_of(local) != self._memory[i]:
                try:
                    self._bind(i, local)
                except muonrt.InvalidArgumentError:  # the memory may still belong to another parameter
                    rejected.append((i, local))
        for i, local in rejected[1:]:
            self._bind(i, torch.empty_like(local))
        for i, local in rejected:
            self._bind(i, local)

    def _bind(self, i: int, local: torch.Tensor) -> None:
        self._core.set_data(i, local)
        self._memory[i] = _memory_of(local)

    def _send_settings(self) -> None:
        for i, group in enumerate(self.param_groups):
            settings = self._group_settings(group)
            if settings != self._sent[i]:
                self._core.set_group(i, **settings)
                self._sent[i] = settings

    @staticmethod
    def _gradient(p: torch.Tensor) -> torch.Tensor | None:
        grad = p.grad
        if grad is None:
            return None
        if ranks.is_dtensor(p) and grad.placements != p.placements:
            grad = grad.redistribute(placements=p.placements)
        return ranks.local_of(grad).contiguous()

    def _scaler(self) -> dict:
        """Returns the arguments of the step that torch.amp.GradScaler has set."""
        scale, found = getattr(self, "grad_scale", None), getattr(self, "found_inf", None)
        if self._device.type == "cuda":  # they stay on the GPU, so the host does not wait for them
            given = {"grad_scale_inv": None if scale is None else scale.double().reciprocal(),
                     "found_inf": found}
            return {key: torch.as_tensor(value, dtype=torch.float32, device=self._device)
                    for key, value in given.items() if value is not None}
        return {"grad_scale_inv": 1.0 if scale is None else 1.0 / float(scale),
                "found_inf": found is not None and bool(float(found))}

    def _step(self, grads: list, rates: list[float], given: dict) -> muonrt.StepReport:
        missing = [i for i, g in enumerate(grads) if g is None]
        try:
            return self._core.step(rates, missing, **given)
        except muonrt.MismatchError:
            lists = ranks.gather_objects(self._comm, missing)
            if all(other == missing for other in lists):
                raise
        inactive = set(lists[0]).intersection(*lists[1:])
        for i in set(missing) - inactive:
            grads[i] = torch.zeros_like(ranks.local_of(self._params[i]))
        self._core.set_grads(grads)
        return self._core.step(rates, sorted(inactive), **given)

    def _vote_to_reject(self) -> None:
        """Takes part in the peers' step without gradients, so that the step returns an error there."""
        if self._comm.size > 1:
            self._core.set_grads([None] * len(self._params))
            try:
                self._core.step(1.0, stream=ranks.stream_of(self._device))
            except muonrt.Error:
                pass

    @property
    def plan(self) -> str:
        """The plan as text: owners, chunks, bytes, memory, balance."""
        return self._core.describe()

    def health(self) -> dict[str, float]:
        """Returns the statistics of the last step that collected them (health_every=k), as a flat dict
        for W&B or TensorBoard."""
        found = self._core.health()
        out = {"muonrt/step": found["step"]}
        for matrix in found["matrices"]:
            for key in ("update_rms", "weight_rms", "sigma_min", "sigma_max", "deviation"):
                out[f"muonrt/{matrix['param']}/{matrix['index']}/{key}"] = matrix[key]
        return out

    def reset_masters(self) -> None:
        """Resets float32 master weights to the values of the parameters. Call it on every rank after
        you have loaded parameters into the model."""
        self._state_tensors.reset_masters()

    def state_dict(self) -> dict:
        """Returns the state in torch's form. Its tensors are over muonrt's memory, and they are DTensors
        if the parameters are.

        With NorMuon the call is collective, because the owners of matrices hold its second moments.
        """
        self._state_tensors.gather()
        return super().state_dict()

    def load_state_dict(self, state_dict: dict) -> None:
        """Copies a state of muonrt.torch.Muon, or of torch.optim.Muon and AdamW, into this optimizer."""
        self._state_tensors.load(state_dict)

    def save(self, folder: str | os.PathLike, *, with_params: bool = True, keep: int = 1,
             overwrite: bool = False) -> None:
        """Saves a checkpoint that can be loaded on any mesh; see muonrt.Optimizer.save. Collective.

        It contains neither learning rates nor parameters that need no gradient.
        """
        self._of_folder(self._core.save, folder, with_params=with_params, keep=keep,
                        overwrite=overwrite)

    def load(self, folder: str | os.PathLike, *, manifest: str | None = None,
             without_params: bool = False, partial: bool = False) -> list[str]:
        """Loads a checkpoint; training then continues with bitwise identical results. Collective.

        See muonrt.Optimizer.load. Parameters are identified by the names that were passed at
        creation. If the checkpoint contains parameters, the model's are overwritten. Learning rates
        do not change; set those of the scheduler. Returns notes: what was found, and differences.
        """
        notes = self._of_folder(self._core.load, folder, manifest=manifest,
                                without_params=without_params, partial=partial)
        torch.autograd.graph.increment_version([ranks.local_of(p) for p in self._params])
        self._state_tensors.read_steps()
        self._state_tensors.gather()
        return notes

    def save_reserve(self, *, with_params: bool = True) -> int:
        """Reserves memory so that `save_begin` can return before the file is written; returns its bytes."""
        taken = self._core.save_reserve(with_params=with_params)
        self._reserved = with_params or bool(self._reserved)
        return taken

    def save_begin(self, folder: str | os.PathLike, *, with_params: bool = True,
                   keep: int = 1, overwrite: bool = False) -> None:
        """Starts a save, which a thread writes while steps continue. Collective."""
        self._of_folder(self._core.save_begin, folder, with_params=with_params, keep=keep,
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
        """Calls `call` after a preparation. If that raises on any rank, all ranks raise its error."""
        def prepare():
            with ranks.on_device(self._device):
                self._follow()
            self._send_settings()

        ranks.run_collectively(self._comm, prepare)
        ranks.settle(self._device)
        return call(folder, **options)

    def close(self) -> None:
        """Releases memory and connections. `state` is empty afterwards."""
        self.state.clear()
        self._state_tensors = None
        if self._core is not None:
            self._core.close()
        self._comm.close()


@atexit.register
def _close_all() -> None:
    for optimizer in list(_alive):
        with contextlib.suppress(muonrt.Error):  # another thread may use it
            optimizer.close()
