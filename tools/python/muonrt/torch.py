"""Implements muonrt.torch.Muon, a torch.optim.Optimizer for plain tensors and DTensors."""

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
    """Updates matrices with Muon and all other parameters with AdamW. Parameters may be sharded.

    The constructor, `step`, `save` and `load` are collective: call them on all ranks.

    :param params: the model, ``model.named_parameters()``, or groups: dicts with "params" (pairs of
        name and parameter, or parameters with "param_names") and any of the settings below;
        "adamw_lr" and "adamw_weight_decay" apply to the group's parameters that AdamW updates.
        muonrt ignores other keys. If you pass no names, muonrt searches for the module that
        contains all of these parameters. A group can also set "role" ("muon" or "adamw" for all of
        its parameters), and describe how its tensors form matrices: "transposed" (True: stored as
        inputs x outputs), "batch_dims" and "row_dims" (see muonrt.Param). Parameters must be
        float32 or bfloat16, and all must be in host memory or on the same CUDA device. DTensors
        (FSDP2, HSDP, TP) keep their placements. muonrt ignores parameters that do not require
        gradients.
    :param lr: learning rate of Muon. With the default "scale_rule", "match_rms", Muon's updates
        have the same scale as AdamW's. A learning rate that is tuned for AdamW therefore works for
        both. Default: 3e-4, or 0.02 with a different "scale_rule".
    :param adamw_lr: learning rate of AdamW. Default: lr. With a "scale_rule" other than "match_rms",
        there is no default.
    :param weight_decay: weight decay of Muon. Default: 0.1.
    :param adamw_weight_decay: weight decay of AdamW. Default: 0.01.
    :param momentum: momentum of Muon. Default: 0.95.
    :param nesterov: whether Muon uses Nesterov momentum. Default: True.
    :param betas: betas of AdamW. Default: (0.9, 0.95).
    :param eps: epsilon of AdamW. Default: 1e-8.
    :param preset: name of a published optimizer, such as "moonlight"; see muonrt.torch.presets().
        The other arguments override the settings of the preset.
    :param role: a function that receives a name and a parameter. It returns the role and, if
        needed, how the tensor forms matrices: "muon"; "adamw"; ("muon", "stack") for experts x rows
        x columns; ("muon", "flatten") for convolution kernels; or ("muon", {...}) with settings of
        muonrt.Param, such as "transposed", "parts" or "qk_clip", which override those of the group.
        If a plain tensor is a shard, this dict must contain its "layout" and the "shape" of the
        whole tensor. If the function is missing or returns None, AdamW updates embeddings, output
        heads, norms and vectors, and Muon updates the other matrices. If you pass the model, muonrt
        determines these roles by modules, and otherwise by names; see describe().
    :param qk_clip: a muonrt.QkClip in which kind and layer are None. It clips all query and key
        projections whose names muonrt recognizes, such as "layers.3.self_attn.q_proj.weight"; see
        muonrt_qk_layer_parse(). The function `role` can return a different "qk_clip" for a
        parameter, or "qk_clip": None to disable clipping.
    :param muon: further settings of muonrt.Group for Muon, such as {"coefficients":
        "keller_jordan"}. They cannot be changed later.
    :param adamw: further settings of muonrt.Group for AdamW. They cannot be changed later.
    :param process_group: the process group of the ranks that hold the parameters. None: all ranks.
        With pipeline parallelism, create one optimizer per stage.
    :param interface: the name or address of the network interface on which the group's first rank
        listens if the ranks run on multiple machines. Default: GLOO_SOCKET_IFNAME. If this is not
        set, each rank uses the first address at which it can connect.
    :param comm: an existing muonrt.Comm over these ranks. Default: the optimizer creates one. For
        CUDA tensors, create it with Comm.nccl or Comm.staged.
    :param sync: if False, `step` returns before the step is complete, and `wait` or the next `step`
        raises the errors of the step. In this mode, a MismatchError is raised if only some ranks
        have a gradient for a parameter. With True, a missing gradient counts as zero. Default:
        True.
    :param options: settings of muonrt.Optimizer, such as clip_norm. The default of `threads` is
        torch.get_num_threads(). The functions assign(info), gather(name, owner, local, full) and
        redistribute(name, owner, full, local) receive tensors in the transport dtype, and `owner`
        is a rank of the process group. On CUDA, muonrt's stream is the current stream during these
        calls.

    Before each step, the optimizer registers the current tensors of the parameters in
    ``param_groups`` and in the model, and copies the entries of ``state`` that a trainer has
    changed. An optimizer cannot be copied or pickled.

    On CUDA, a step waits for the work on the current stream, and `step` returns after the step is
    complete. With ``sync=False``, the step may still be running when `step` returns. The current
    stream then waits for it, so work that you enqueue on this stream afterwards reads the new
    parameters.

    By default, the standard form of the Newton-Schulz iteration uses bfloat16 on CUDA and on
    processors with instructions for products in bfloat16 (AVX512_BF16 or AMX), and float32 on other
    processors. The Gram form uses float16 on CUDA and float32 on the host. Ranks exchange data in
    bfloat16. To reproduce the results of torch.optim.Muon, set iteration_dtype="bfloat16",
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
        self._in_flight: list | None = None  # gradients of the step that wait() must complete
        self._prepared: tuple | None = None  # arguments of the step that compute() must begin
        self._saving = False
        # The argument without_params of save_reserve(), or None if save_reserve() was not called.
        self._reserved: bool | None = None
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
        # OneCycleLR and CyclicLR change "momentum" in all groups if the defaults contain it.
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
        """Uses the caller's communicator, or creates a communicator for parameters on `device`."""
        given, role, _, options = self._made_with
        self._device = device
        with ranks.on_device(device):
            self._comm, world = (self._given_comm, list(range(self._given_comm.size))) \
                if self._given_comm is not None else ranks.comm_of(device, self._process_group, self._interface)
        self._alone = self._given_comm is None and not (dist.is_available() and dist.is_initialized())
        self._made_with = given, role, {r: i for i, r in enumerate(world)}, options

    def _split(self, params: Iterable, role: Role | None, given: dict) -> list[dict]:
        """Returns the param_groups of torch.optim.Optimizer, with the names and settings of the parameters."""
        out = []
        for kind, named, settings in _torch_groups.split(params, role, given, self._fixed["muon"]):
            self._names += [name for name, _, _ in named]
            self._param_settings += [of_param for _, of_param, _ in named]
            out.append({"params": [(name, p) for name, _, p in named], "role": kind,
                        **given[kind], **settings})
            self._group_settings(out[-1] | {"param_names": [name for name, *_ in named]})
            if kind == "muon":  # for code that reads the state
                out[-1]["momentum_kind"] = self._fixed[kind].get("momentum_kind", "ema")
        return out

    def _group_settings(self, group: dict) -> dict:
        """Converts a param_group to settings of muonrt.Group. Omits the learning rate, which is an
        argument of each step. Raises an error if a setting or the learning rate is invalid."""
        _torch_arguments.check_numbers({key: group[key] for key in CHANGING[group["role"]]},
                                       f"{{}} of the group of '{group['param_names'][0]}' ({group['role']})")
        out = {"weight_decay": float(group["weight_decay"])}
        if group["role"] == "muon":
            return out | {"momentum": float(group["momentum"]), "nesterov": bool(group["nesterov"])}
        return out | {"beta1": float(group["betas"][0]), "beta2": float(group["betas"][1]),
                      "adamw_eps": float(group["eps"])}

    def _check_settings(self, groups: list[dict]) -> None:
        """Raises an error if a setting of these param_groups is invalid. The core optimizer keeps
        its settings."""
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
        self._copies: dict[int, torch.Tensor] = {}  # copies of parameters that are not row-major
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
        ranks.settle(self._device)  # the constructor copies parameters to master weights
        self._core = muonrt.Optimizer(params, groups, self._comm, **_torch_functions.wrapped(options))
        self._sizes = [len(g["params"]) for g in self.param_groups]
        self._memory = [memory_of(self._data(i)) for i in range(len(self._params))]
        self._find_places()

    def _shape_of(self, p: torch.Tensor) -> tuple[int, ...]:
        """Returns the shape of the whole tensor, even if FSDP1 exposes only a range of its
        elements."""
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
        """Adds a group of parameters, for example those of layers that you unfreeze. Collective.

        The group is a dict, as in the constructor's `params`. muonrt computes a new plan. State,
        update counts and learning rates of the other parameters do not change, and the new
        parameters start with initial state. During the call, memory must hold both the old and the
        new state. If a save is in progress, call `save_wait` first.
        """
        add = super().add_param_group

        def enter(group: dict) -> None:
            add(group)
            for key in set(cycled_keys) - set(CHANGING[group["role"]]):
                group.pop(key, None)  # torch adds this default, but the role has no such key

        cycled_keys = ("momentum", "betas")
        if self._core is None:
            return enter(param_group)
        self.wait()
        _torch_groups.add(self, param_group, enter)

    def __getstate__(self):
        raise TypeError("muonrt.torch.Muon cannot be copied or pickled, because its state belongs to a "
                        "communicator; create a new one and load state_dict() into it")

    def plan(self) -> muonrt.Plan:
        """Returns the plan: owners, chunks, bytes, memory and balance. str() formats it as text."""
        return self._core.plan()

    def health(self) -> dict[str, float]:
        """Returns the health statistics of the last step that collected them (see health_every), as
        a flat dict for Weights & Biases or TensorBoard."""
        found = self._core.health()
        out = {"muonrt/step": found["step"]}
        for matrix in found["matrices"]:
            for key in ("update_rms", "weight_rms", "sigma_min", "sigma_max", "deviation"):
                out[f"muonrt/{matrix['param']}/{matrix['index']}/{key}"] = matrix[key]
        return out

    def reset_masters(self) -> None:
        """Sets the float32 master weights to the values of the parameters. Call this method on
        every rank after you have loaded parameters into the model."""
        with torch.no_grad(), ranks.on_device(self._device):
            self._follow()
        self._state_tensors.reset_masters()

    def state_dict(self) -> dict:
        """Returns the state in the format of torch.optim.Optimizer. Its tensors are views of
        muonrt's memory, and DTensors if the parameters are DTensors.

        With NorMuon, the call is collective, because only the owner of a matrix holds its second
        moments.
        """
        self._follow_state()
        self._state_tensors.gather()
        return super().state_dict()

    def load_state_dict(self, state_dict: dict) -> None:
        """Copies a state of muonrt.torch.Muon, or of torch.optim.Muon and AdamW, into this optimizer.

        If the call raises an error, the optimizer has not changed. To combine the states of
        separate torch optimizers, use ``python -m muonrt.convert``.
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
        """Releases memory and connections, and empties `state`."""
        self._in_flight = self._prepared = None  # close() completes a step that is in flight
        self.state.clear()
        self._state_tensors = None
        if self._core is not None:
            self._core.close()
        self._comm.close()


@atexit.register
def _close_all() -> None:
    for optimizer in list(_alive):
        with contextlib.suppress(muonrt.Error):  # another thread may be using it
            optimizer.close()
