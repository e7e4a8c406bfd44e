"""muonrt.torch.Muon: a torch.optim.Optimizer over plain tensors and DTensors."""

import atexit
import contextlib
import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

try:
    import torch
except ModuleNotFoundError as _error:
    if _error.name != "torch":
        raise
    raise ModuleNotFoundError(
        "muonrt.torch needs PyTorch 2.9 or later, which is not installed; run `pip install torch` (the guide "
        "of muonrt for Python also shows how to get it without CUDA)", name="torch") from None
import torch.distributed as dist

import muonrt
from muonrt import _presets, _torch_arguments, _torch_flat, _torch_functions, _torch_groups
from muonrt import _torch_ranks as ranks
from muonrt._presets import names as presets  # noqa: F401
from muonrt._torch_folder import Folders
from muonrt._torch_functions import mesh_from_groups  # noqa: F401
from muonrt._torch_params import memory_of
from muonrt._torch_roles import CHANGING, DEFAULTS, Role, describe, of_module, warn_of_conv1d
from muonrt._torch_state import State
from muonrt._torch_step import Steps

if TYPE_CHECKING:
    from typing import Unpack

ARGUMENTS = ("params", "lr", "adamw_lr", "weight_decay", "adamw_weight_decay", "momentum", "nesterov",
             "betas", "eps", "preset", "role", "qk_clip", "muon", "adamw", "process_group", "interface", "comm", "sync",
             *_torch_arguments.Options.__annotations__)
_alive: "weakref.WeakSet[Muon]" = weakref.WeakSet()


class Muon(Folders, Steps):
    """Updates matrices with Muon and all other parameters with AdamW, sharded as the parameters are.

    Creation, step, save and load are collective: call them on all ranks.

    :param params: the model, ``model.named_parameters()``, or groups: dicts with "params" (pairs of
        name and parameter, or parameters with "param_names") and any of the settings below;
        "adamw_lr" and "adamw_weight_decay" are for the group's parameters of AdamW. Other keys are
        the trainer's. Without names, muonrt looks for the module that has all of these parameters.
        A group may also have "role" ("muon" or "adamw" for all of its parameters) and say how the
        tensors of its matrices are read: "transposed" (True: stored as inputs x outputs),
        "batch_dims" and "row_dims" (see
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
    :param qk_clip: a muonrt.QkClip without kind and layer, which clips the query and key projections
        that are named as in most models, such as "layers.3.self_attn.q_proj.weight"; see
        muonrt_qk_layer_parse(). "qk_clip" of a role replaces it, and None there omits it.
    :param muon: further settings of muonrt.Group for Muon, such as {"coefficients":
        "keller_jordan"}. They are fixed.
    :param adamw: further settings of muonrt.Group for AdamW. They are fixed.
    :param process_group: the ranks that hold the parameters. None: all ranks. With pipeline
        parallelism, create one optimizer per stage.
    :param interface: on several machines, the name or address of the interface at which the group's
        first rank listens. Default: GLOO_SOCKET_IFNAME, or any of its addresses that answers.
    :param comm: a muonrt.Comm over the same ranks, to use instead of a new one. For CUDA tensors it
        is one of Comm.nccl or Comm.staged.
    :param sync: False: `step` returns before the step has ended, and `wait` or the next `step` raises its
        errors. If only some ranks have a gradient of a parameter, these steps raise MismatchError.
        Default: True.
    :param options: settings of muonrt.Optimizer, such as clip_norm. threads is
        torch.get_num_threads() by default. assign(info), gather(name, owner, local, full) and
        redistribute(name, owner, full, local) get tensors in the transport dtype; ranks are those of
        the process group, and on CUDA the current stream is muonrt's.

    Before a step the optimizer binds the parameters that ``param_groups`` and the model then have, and
    copies what a trainer has written into ``state``. It cannot be copied or pickled.

    On CUDA a step waits for the current stream. When `step` returns, its work has ended, or, with
    ``sync=False``, the current stream waits for it: later work on this stream finds the new parameters.

    By default the Newton-Schulz iteration uses float32 (on CUDA bfloat16), and ranks exchange
    bfloat16. For the values of torch.optim.Muon set iteration_dtype="bfloat16",
    transport_dtype="float32" and muon={"coefficients": "keller_jordan", "normalize": "max_eps",
    "scale_rule": "original"}.
    """

    describe = describe

    def __init__(self, params: "Iterable | torch.nn.Module", lr: float | None = None, *,
                 adamw_lr: float | None = None, weight_decay: float | None = None,
                 adamw_weight_decay: float | None = None, momentum: float | None = None,
                 nesterov: bool | None = None, betas: tuple[float, float] | None = None,
                 eps: float | None = None, preset: str | None = None,
                 role: Role | None = None, qk_clip: muonrt.QkClip | None = None, muon: dict[str, Any] | None = None,
                 adamw: dict[str, Any] | None = None, process_group=None,
                 interface: str | None = None, comm: muonrt.Comm | None = None, sync: bool = True,
                 **options: "Unpack[_torch_arguments.Options]"):
        _torch_arguments.reject_unknown("muonrt.torch.Muon", options, ARGUMENTS)
        settings = {"lr": lr, "adamw_lr": adamw_lr, "weight_decay": weight_decay, "momentum": momentum,
                    "adamw_weight_decay": adamw_weight_decay, "nesterov": nesterov, "betas": betas, "eps": eps}
        _torch_arguments.check_numbers({k: v for k, v in settings.items() if v is not None})
        _torch_arguments.require_process_group(process_group, comm)
        params, self._module = _torch_arguments.named(params)
        given = {"muon": dict(lr=lr, weight_decay=weight_decay, momentum=momentum,
                              nesterov=nesterov),
                 "adamw": dict(lr=adamw_lr, weight_decay=adamw_weight_decay, betas=betas, eps=eps)}
        self._core = None
        self._sync = sync
        self._in_flight: list | None = None  # gradients of a step that wait() has to complete
        self._prepared: tuple | None = None  # arguments of the step that compute() has to begin
        self._saving = False
        self._reserved: bool | None = None  # without_params of save_reserve(); None: not called
        self._names: list[str] = []
        self._param_settings: list[dict[str, Any]] = []
        self._qk_clip = qk_clip
        found = _presets.preset(preset, qk_clip is not None) if preset else {"muon": {}, "adamw": {}}
        if "muon" not in found:
            found, role = found | {"muon": {}}, lambda name, p: "adamw"
        fixed = {"muon": muon or {}, "adamw": adamw or {}}
        for kind, key in ((kind, key) for kind in fixed for key in fixed[kind]):
            if key in (*CHANGING["muon"], "beta1", "beta2", "adamw_eps"):
                how = _torch_arguments.OTHER_NAMES.get(key, f"pass {key}=")
                raise TypeError(f"{kind} has '{key}'; {how}")
        self._fixed = {kind: {k: v for k, v in found[kind].items() if k not in CHANGING[kind]}
                       | fixed[kind] for kind in CHANGING}
        for kind in CHANGING:
            of_preset = {k: v for k, v in found[kind].items() if k in CHANGING[kind]}
            own = {k: v for k, v in given[kind].items() if v is not None}
            given[kind] = DEFAULTS[kind] | of_preset | own
        _torch_groups.set_rates(given, found, lr, adamw_lr, self._fixed["muon"])
        self._flat = _torch_flat.shards_of(params, self._module)
        with _torch_flat.whole(self._flat, params) as (params, originals):
            role = of_module(self._module, role)
            groups = self._split(params, role, given)
            warn_of_conv1d(groups, self._param_settings, self._fixed["muon"])
        for group in groups:
            group["params"] = [(name, originals.get(id(p), p)) for name, p in group["params"]]
        if not groups:
            raise muonrt.InvalidArgumentError(
                "params has no parameter that needs a gradient; pass model.named_parameters()")
        # OneCycleLR and CyclicLR change this entry of all groups, if the defaults have it.
        cycled = {"momentum": given["muon"]["momentum"]} if any(g["role"] == "muon" for g in groups) \
            else {"betas": given["adamw"]["betas"]}
        super().__init__(groups, {k: given["muon"][k] for k in ("lr", "weight_decay")} | cycled)
        self._params = [p for group in self.param_groups for p in group["params"]]
        self._given_comm, self._process_group, self._interface = comm, process_group, interface
        options.setdefault("threads", min(torch.get_num_threads(), 256))
        self._made_with = given, role, {}, options
        self._connect(ranks.local_of(self._params[0]).device)
        with ranks.on_device(self._device):
            self._create()
            self._state_tensors = State(self)
        self.last_report: muonrt.StepReport | None = None
        _alive.add(self)

    def _connect(self, device: torch.device) -> None:
        """Takes the caller's communicator, or creates one for parameters on `device`."""
        given, role, _, options = self._made_with
        self._device = device
        with ranks.on_device(device):
            self._comm, world = (self._given_comm, list(range(self._given_comm.size))) \
                if self._given_comm is not None else ranks.comm_of(device, self._process_group, self._interface)
        self._alone = self._given_comm is None and not (dist.is_available() and dist.is_initialized())
        self._made_with = given, role, {r: i for i, r in enumerate(world)}, options

    def _split(self, params: Iterable, role: Role | None, given: dict) -> list[dict]:
        """Returns torch's param_groups, and adds the names and settings of the parameters."""
        out = []
        for kind, named, settings in _torch_groups.split(params, role, given, self._fixed["muon"]):
            self._names += [name for name, _, _ in named]
            self._param_settings += [of_param for _, of_param, _ in named]
            out.append({"params": [(name, p) for name, _, p in named], "role": kind,
                        **given[kind], **settings})
            self._group_settings(out[-1] | {"param_names": [name for name, *_ in named]})
            if kind == "muon":  # for readers of the state
                out[-1]["momentum_kind"] = self._fixed[kind].get("momentum_kind", "ema")
        return out

    def _group_settings(self, group: dict) -> dict:
        """Returns a param_group as settings of muonrt.Group, without the rate, which each step passes.
        Raises if one of them, or the rate, is invalid."""
        _torch_arguments.check_numbers({key: group[key] for key in CHANGING[group["role"]]},
                                       f"{{}} of the group of '{group['param_names'][0]}' ({group['role']})")
        out = {"weight_decay": float(group["weight_decay"])}
        if group["role"] == "muon":
            return out | {"momentum": float(group["momentum"]), "nesterov": bool(group["nesterov"])}
        return out | {"beta1": float(group["betas"][0]), "beta2": float(group["betas"][1]),
                      "adamw_eps": float(group["eps"])}

    def _check_settings(self, groups: list[dict]) -> None:
        """Raises if a setting of these param_groups is invalid; the core keeps its settings."""
        tried = []
        try:
            for i, group in enumerate(groups):
                self._core.set_group(i, **self._group_settings(group))
                tried.append(i)
        finally:
            for i in tried:
                self._core.set_group(i, **self._sent[i])

    def _create(self) -> None:
        _, _, number, options = self._made_with
        self._copies: dict[int, torch.Tensor] = {}  # of parameters that are not row-major
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
                settings = {"shape": self._shape_of(p), "layout": layout, "qk_clip": self._qk_clip} \
                    | self._param_settings[i]
                params.append(muonrt.Param(name, self._data(i), group=of_group[i], **settings))

        ranks.run_collectively(self._comm, describe)
        ranks.settle(self._device)  # the creation copies parameters to master weights
        self._core = muonrt.Optimizer(params, groups, self._comm, **_torch_functions.wrapped(options))
        self._sizes = [len(g["params"]) for g in self.param_groups]
        self._memory = [memory_of(self._data(i)) for i in range(len(self._params))]
        self._find_places()

    def _shape_of(self, p: torch.Tensor) -> tuple[int, ...]:
        """Returns the shape of the whole tensor, of which FSDP1 shows only a range of elements."""
        return self._flat[id(p)].shape if id(p) in self._flat else tuple(p.shape)

    def _placement(self, name: str, p: torch.Tensor, number: dict[int, int]):
        device = ranks.local_of(p).device
        if device.type not in ("cpu", "cuda"):
            how = "call to_empty() and initialize the model before you create the optimizer" \
                if device.type == "meta" else "put it in host memory or on a CUDA device"
            raise muonrt.InvalidArgumentError(f"param '{name}' is on device '{device}'; {how}")
        if device != self._device:
            raise muonrt.InvalidArgumentError(
                f"param '{name}' is on device '{device}', but param '{self._names[0]}' is on "
                f"'{self._device}'; put all parameters on one device")
        if id(p) in self._flat:
            return _torch_flat.placement_of(self._flat[id(p)], number)
        found = ranks.placement_of(name, p, number)
        return found and (found.mesh_shape, found.ranks, found.placements)

    def add_param_group(self, param_group: dict) -> None:
        """Adds a group of parameters, for example of layers that are unfrozen. Collective.

        The group is a dict as at creation. A new plan is made. State, update counts and rates of the
        other parameters do not change; those of the new parameters start at their initial values.
        During the call both states are in memory. No save may be in progress.
        """
        add = super().add_param_group

        def enter(group: dict) -> None:
            add(group)
            for key in set(cycled_keys) - set(CHANGING[group["role"]]):
                group.pop(key, None)  # a default of torch that only the other role has

        cycled_keys = ("momentum", "betas")
        if self._core is None:
            return enter(param_group)
        self.wait()
        _torch_groups.add(self, param_group, enter)

    def __getstate__(self):
        raise TypeError("muonrt.torch.Muon cannot be copied or pickled, because its state belongs to a "
                        "communicator; create a new one and load state_dict() into it")

    def plan(self) -> muonrt.Plan:
        """Returns the plan: owners, chunks, bytes, memory, balance. str() makes it text."""
        return self._core.plan()

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
        with torch.no_grad(), ranks.on_device(self._device):
            self._follow()
        self._state_tensors.reset_masters()

    def state_dict(self) -> dict:
        """Returns the state in torch's form. Its tensors are over muonrt's memory, and they are DTensors
        if the parameters are.

        With NorMuon the call is collective, because the owners of matrices hold its second moments.
        """
        self._follow_state()
        self._state_tensors.gather()
        return super().state_dict()

    def load_state_dict(self, state_dict: dict) -> None:
        """Copies a state of muonrt.torch.Muon, or of torch.optim.Muon and AdamW, into this optimizer.

        If it raises, nothing has changed. States of separate torch optimizers are joined by
        ``python -m muonrt.convert``.
        """
        self._follow_state()
        state_dict = state_dict.copy()
        for hook in self._optimizer_load_state_dict_pre_hooks.values():
            changed = hook(self, state_dict)
            state_dict = state_dict if changed is None else changed
        self._state_tensors.load(state_dict)
        for hook in self._optimizer_load_state_dict_post_hooks.values():
            hook(self)

    def close(self) -> None:
        """Releases memory and connections. `state` is empty afterwards."""
        self._in_flight = self._prepared = None  # the core completes the step in flight
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
