"""muonrt.torch.Muon: a torch.optim.Optimizer over plain tensors and DTensors."""

import atexit
import os
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch

import muonrt
from muonrt import _presets, _torch_groups
from muonrt import _torch_ranks as ranks
from muonrt._presets import names as presets  # noqa: F401
from muonrt._torch_roles import DIMS, Role, role_of, warn_of_conv1d
from muonrt._torch_state import State

# What a param_group of each role holds that may change between steps; the rest is fixed.
CHANGING = {"muon": ("lr", "weight_decay", "momentum", "nesterov"),
            "adamw": ("lr", "weight_decay", "betas", "eps")}
# What a call and a preset leave open.
DEFAULTS = {"muon": dict(lr=0.02, weight_decay=0.1, momentum=0.95, nesterov=True),
            "adamw": dict(lr=3e-4, weight_decay=0.01, betas=(0.9, 0.95), eps=1e-8)}
_alive: "weakref.WeakSet[Muon]" = weakref.WeakSet()


def _place_of(tensor: torch.Tensor) -> tuple:
    return tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()


class Muon(torch.optim.Optimizer):
    """Muon for matrices and AdamW for the rest, sharded as the parameters are.

    params: `model.named_parameters()`, or groups: dicts with "params" (named the same way) and any
        of the settings below for them, "role" among them ("muon" or "adamw" for all of a group),
        and how their matrices lie: transposed=True: stored inputs x outputs (GPT-2's Conv1D);
        batch_dims, row_dims: how many dimensions make a stack, and the rows, as muonrt.Param's;
        of no effect on those of the group that get AdamW.
        float32 or bfloat16, all in host memory or on one CUDA device; DTensors (FSDP2, HSDP, TP)
        lie as they say. Parameters that need no gradient are left out. Updated in place.
    lr, weight_decay, momentum, nesterov: Muon's (0.02, 0.1, 0.95, True).
    adamw_lr, adamw_weight_decay, betas, eps: AdamW's (3e-4, 0.01, (0.9, 0.95), 1e-8).
    preset: a published optimizer by name ("moonlight"; muonrt.torch.presets() lists them): its
        settings, but for those given here.
    role: (name, parameter) -> "muon", "adamw", ("muon", "stack") for experts x rows x cols,
        ("muon", "matrix") for convolution kernels, ("muon", {"transposed": True, "batch_dims": 1})
        for what else muonrt.Param has (it goes before the group's): "parts", "qk_clip"; "layout" and
        "shape", for plain tensors that are shards. None: by name and dimension as muonrt.route
        does (embeddings, heads, norms and vectors get AdamW).
    muon, adamw: further settings of muonrt.Group by name, such as {"coefficients":
        "keller_jordan"}; fixed.
    process_group: the ranks that hold the parameters; None: all. One optimizer for each stage of a
        pipeline. comm: a muonrt.Comm over the same ranks instead of one of its own; for CUDA
        tensors one of Comm.nccl or Comm.staged.
    options: of muonrt.Optimizer (threads: torch.get_num_threads() by default; clip_norm, ...).

    Collective over the ranks: creation, step, save, load. On CUDA a step waits for the current
    stream, which need not wait for it: the step's work has ended when `step` returns. By default
    muonrt iterates in f32 (on CUDA in bf16) and sends bf16; for torch.optim.Muon's own values give
    iteration_dtype="bfloat16", transport_dtype="float32" and muon={"coefficients":
    "keller_jordan", "normalize": "max_eps", "scale_rule": "original"}.
    """

    _step_supports_amp_scaling = True  # a GradScaler hands over its scale and what it found

    def __init__(self, params: Iterable, lr: float | None = None, *,
                 adamw_lr: float | None = None, weight_decay: float | None = None,
                 adamw_weight_decay: float | None = None, momentum: float | None = None,
                 nesterov: bool | None = None, betas: tuple[float, float] | None = None,
                 eps: float | None = None, preset: str | None = None,
                 role: Role | None = None, muon: dict[str, Any] | None = None,
                 adamw: dict[str, Any] | None = None, process_group=None,
                 comm: muonrt.Comm | None = None, **options: Any):
        given = {"muon": dict(lr=lr, weight_decay=weight_decay, momentum=momentum,
                              nesterov=nesterov),
                 "adamw": dict(lr=adamw_lr, weight_decay=adamw_weight_decay, betas=betas, eps=eps)}
        self._core = None
        self._saving, self._reserved = False, None  # and what save_reserve was given
        self._names: list[str] = []
        self._readings: list[dict[str, Any]] = []
        found = _presets.preset(preset) if preset else {"muon": {}, "adamw": {}}
        if "muon" not in found:
            found, role = found | {"muon": {}}, lambda name, p: "adamw"
        fixed = {"muon": muon or {}, "adamw": adamw or {}}
        self._fixed = {kind: {k: v for k, v in found[kind].items() if k not in CHANGING[kind]}
                       | fixed[kind] for kind in CHANGING}
        for kind in CHANGING:
            said = {k: v for k, v in found[kind].items() if k in CHANGING[kind]}
            own = {k: v for k, v in given[kind].items() if v is not None}
            given[kind] = DEFAULTS[kind] | said | own
        groups = self._split(params, role, given)
        warn_of_conv1d(groups, self._readings, self._fixed["muon"])
        super().__init__(groups, {k: given["muon"][k] for k in ("lr", "weight_decay")})
        self._params = [p for group in self.param_groups for p in group["params"]]
        self._device = ranks.local_of(self._params[0]).device
        options.setdefault("threads", min(torch.get_num_threads(), 256))
        with ranks.on_device(self._device):
            self._comm, world = (comm, list(range(comm.size))) if comm \
                else ranks.comm_of(self._device, process_group)
            self._made_with = given, role, {r: i for i, r in enumerate(world)}, options
            self._create()
            self._state_views = State(self)
        self.last_report: muonrt.Report | None = None
        _alive.add(self)

    def _split(self, params: Iterable, role: Role | None, given: dict) -> list[dict]:
        """torch's groups: each of the caller's, cut by role."""
        out = []
        entries = list(params)
        if not entries or not isinstance(entries[0], dict):
            entries = [{"params": entries}]
        for entry in entries:
            if "params" not in entry:
                raise muonrt.InvalidArgumentError(
                    f"a group has no 'params'; it has {sorted(entry)}")
            members: dict[str, list] = {"muon": [], "adamw": []}
            rest = {k: v for k, v in entry.items() if k not in ("params", "role", *DIMS)}
            dims = {k: entry[k] for k in DIMS if k in entry}
            for item in entry["params"]:
                if isinstance(item, torch.Tensor):
                    raise muonrt.InvalidArgumentError(
                        f"a parameter of shape {tuple(item.shape)} has no name; pass "
                        "model.named_parameters(), or pairs of name and parameter")
                name, p = item
                if p.requires_grad:
                    kind, reading = role_of(name, p, entry.get("role"), role, dims)
                    members[kind].append((name, reading, p))
            for kind, named in members.items():
                if named:
                    self._names += [name for name, _, _ in named]
                    self._readings += [reading for _, reading, _ in named]
                    unknown = set(rest) - set(CHANGING["muon"] + CHANGING["adamw"])
                    if unknown:
                        raise TypeError(f"a group has no setting {sorted(unknown)}; there are "
                                        f"{CHANGING['muon'] + CHANGING['adamw'] + DIMS}")
                    own = {k: v for k, v in rest.items() if k in CHANGING[kind]}
                    out.append({"params": [(name, p) for name, _, p in named], "role": kind,
                                **given[kind], **own})
                    if kind == "muon":  # for who reads the state
                        out[-1]["momentum_kind"] = self._fixed[kind].get("momentum_kind", "ema")
        return out

    def _group_settings(self, group: dict) -> dict:
        """A param_group in muonrt's words, but its rate, which each step is given."""
        out = {"weight_decay": float(group["weight_decay"])}
        if group["role"] == "muon":
            return out | {"momentum": float(group["momentum"]), "nesterov": bool(group["nesterov"])}
        return out | {"beta1": float(group["betas"][0]), "beta2": float(group["betas"][1]),
                      "eps": float(group["eps"])}

    def _create(self) -> None:
        _, _, number, options = self._made_with
        everywhere = ranks.together(self._comm, lambda: [
            self._spread(name, p, number) for name, p in zip(self._names, self._params)])
        if len({len(e) for e in everywhere}) > 1:
            raise muonrt.MismatchError(
                f"ranks have {[len(e) for e in everywhere]} parameters that need a gradient")
        self._sent = [self._group_settings(g) for g in self.param_groups]
        groups = [muonrt.Group(g["role"], **sent, **self._fixed[g["role"]])
                  for g, sent in zip(self.param_groups, self._sent)]
        params = []
        of_group = [i for i, g in enumerate(self.param_groups) for _ in g["params"]]

        def describe():
            for i, (name, p) in enumerate(zip(self._names, self._params)):
                spreads = [e[i] and ranks.Spread(tuple(e[i][0]), tuple(e[i][1]), e[i][2])
                           for e in everywhere]
                layout = ranks.layout_of(name, p, spreads, self._comm.rank)
                reading = {"shape": tuple(p.shape), "layout": layout} | self._readings[i]
                params.append(muonrt.Param(name, ranks.local_of(p), group=of_group[i], **reading))

        ranks.together(self._comm, describe)
        ranks.settle(self._device)  # masters are made from what parameters hold
        self._core = muonrt.Optimizer(params, groups, self._comm, **options)
        self._places = [_place_of(ranks.local_of(p)) for p in self._params]

    def _spread(self, name: str, p: torch.Tensor, number: dict[int, int]):
        device = ranks.local_of(p).device
        if device.type not in ("cpu", "cuda"):
            raise muonrt.InvalidArgumentError(f"param '{name}' is on device '{device}'; "
                                              "muonrt takes memory of the host and of CUDA devices")
        if device != self._device:
            raise muonrt.InvalidArgumentError(
                f"param '{name}' is on device '{device}', but param '{self._names[0]}' on "
                f"'{self._device}'; an optimizer takes parameters of one device")
        spread = ranks.spread_of(name, p, number)
        return spread and (spread.mesh_shape, spread.ranks, spread.placements)

    def add_param_group(self, param_group: dict) -> None:
        """Adds parameters, as those of layers that are unfrozen: a dict as at creation. Collective.

        All is planned anew. State, counts and rates of the others stay to the bit; those of the new
        ones begin. Both states are in memory meanwhile. No save may be under way.
        """
        enter = super().add_param_group
        if self._core is None:
            return enter(param_group)
        _torch_groups.add(self, param_group, enter)

    def step(self, closure: Callable[[], Any] | None = None, *,
             qk_logits: torch.Tensor | None = None):
        """One step of every parameter, or of none; returns the closure's loss. Collective.

        `last_report` says what was done. Parameters without a gradient sit out; where another rank
        has one, the gradient here counts as zero. qk_logits: float32, for a role's "qk_clip": the
        largest logit of each query head here, as for muonrt.Optimizer.step.
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
                self._vote_no()
                raise
            except BaseException:  # Ctrl-C
                self._comm.abort("interrupted by a signal")
                raise
            self.last_report = self._step(grads, rates, given)
            if not self.last_report.skipped:
                torch.autograd.graph.increment_version(
                    [ranks.local_of(p) for g, p in zip(grads, self._params) if g is not None])
                self._state_views.note_steps()
        return loss

    def _follow(self) -> None:
        """Binds parameters anew that have moved in memory (`p.data = ...`)."""
        stuck = []
        for i, p in enumerate(self._params):
            local = ranks.local_of(p)
            if _place_of(local) != self._places[i]:
                try:
                    self._bind(i, local)
                except muonrt.InvalidArgumentError:  # another one may have been there
                    stuck.append((i, local))
        for i, local in stuck[1:]:
            self._bind(i, torch.empty_like(local))
        for i, local in stuck:
            self._bind(i, local)

    def _bind(self, i: int, local: torch.Tensor) -> None:
        self._core.set_data(i, local)
        self._places[i] = _place_of(local)

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
        """What torch.amp.GradScaler has put here for this step."""
        scale, found = getattr(self, "grad_scale", None), getattr(self, "found_inf", None)
        if self._device.type == "cuda":  # the host does not wait for them
            given = {"grad_scale_inv": None if scale is None else scale.double().reciprocal(),
                     "found_inf": found}
            return {key: torch.as_tensor(value, dtype=torch.float32, device=self._device)
                    for key, value in given.items() if value is not None}
        return {"grad_scale_inv": 1.0 if scale is None else 1.0 / float(scale),
                "found_inf": found is not None and bool(float(found))}

    def _step(self, grads: list, rates: list[float], given: dict) -> muonrt.Report:
        missing = [i for i, g in enumerate(grads) if g is None]
        try:
            return self._core.step(rates, missing, **given)
        except muonrt.MismatchError:
            lists = ranks.gather_objects(self._comm, missing)
            if all(other == missing for other in lists):
                raise
        absent = set(lists[0]).intersection(*lists[1:])
        for i in set(missing) - absent:
            grads[i] = torch.zeros_like(ranks.local_of(self._params[i]))
        self._core.set_grads(grads)
        return self._core.step(rates, sorted(absent), **given)

    def _vote_no(self) -> None:
        """Takes part in the peers' step without gradients, so that it ends with an error there."""
        if self._comm.size > 1:
            self._core.set_grads([None] * len(self._params))
            try:
                self._core.step(1.0, stream=ranks.stream_of(self._device))
            except muonrt.Error:
                pass

    @property
    def plan(self) -> str:
        """Owners, chunks, bytes, memory, balance, for a person."""
        return self._core.describe()

    def health(self) -> dict[str, float]:
        """A flat dict for W&B or TensorBoard of the last step that measured (health_every=k)."""
        found = self._core.health()
        out = {"muonrt/step": found["step"]}
        for matrix in found["matrices"]:
            for key in ("update_rms", "weight_rms", "sigma_min", "sigma_max", "deviation"):
                out[f"muonrt/{matrix['param']}/{matrix['index']}/{key}"] = matrix[key]
        return out

    def take_params(self) -> None:
        """Reads f32 master weights from the parameters again, after a load into the model."""
        self._state_views.take_params()

    def state_dict(self) -> dict:
        """torch's form; tensors over muonrt's memory, DTensors where parameters are.

        Collective where NorMuon's moments are part of it: they lie with the owners of matrices.
        """
        self._state_views.gather()
        return super().state_dict()

    def load_state_dict(self, state_dict: dict) -> None:
        """Copies a state in place: of muonrt.torch.Muon, or of torch.optim.Muon and AdamW."""
        self._state_views.load(state_dict)

    def save(self, folder: str | os.PathLike, *, with_params: bool = False, keep: int = 1) -> None:
        """Saves a checkpoint that any mesh can go on from; see muonrt.Optimizer.save. Collective.

        Rates are not in it, nor are parameters that need no gradient.
        """
        self._of_folder(self._core.save, folder, with_params=with_params, keep=keep)

    def load(self, folder: str | os.PathLike, *, manifest: str | None = None,
             without_params: bool = False, partial: bool = False) -> list[str]:
        """Goes on from what `save` has saved, to the same bits; returns what differs. Collective.

        See muonrt.Optimizer.load. Parameters go by the names that they were given by; where the
        checkpoint has them, the model's are written. Rates stay: set those of the scheduler.
        """
        notes = self._of_folder(self._core.load, folder, manifest=manifest,
                                without_params=without_params, partial=partial)
        torch.autograd.graph.increment_version([ranks.local_of(p) for p in self._params])
        self._state_views.note_steps()
        self._state_views.gather()
        return notes

    def save_reserve(self, *, with_params: bool = False) -> int:
        """Takes host memory, so that `save_begin` need not write; returns how many bytes."""
        taken = self._core.save_reserve(with_params=with_params)
        self._reserved = with_params or bool(self._reserved)
        return taken

    def save_begin(self, folder: str | os.PathLike, *, with_params: bool = False,
                   keep: int = 1) -> None:
        """Begins a save, which a thread writes while steps go on. Collective."""
        self._of_folder(self._core.save_begin, folder, with_params=with_params, keep=keep)
        self._saving = True

    def save_wait(self) -> None:
        """Waits until every rank has written what was begun, and publishes it. Collective."""
        try:
            self._core.save_wait()
        finally:
            self._saving = False

    def _of_folder(self, call: Callable, folder: str | os.PathLike, **options: Any):
        """What is wrong here is told to all ranks, which would wait."""
        def ready():
            with ranks.on_device(self._device):
                self._follow()
            self._send_settings()

        ranks.together(self._comm, ready)
        ranks.settle(self._device)
        return call(folder, **options)

    def close(self) -> None:
        """Gives back memory and connections; `state` is empty afterwards."""
        self.state.clear()
        self._state_views = None
        if self._core is not None:
            self._core.close()
        self._comm.close()


@atexit.register
def _close_all() -> None:
    for optimizer in list(_alive):
        optimizer.close()
