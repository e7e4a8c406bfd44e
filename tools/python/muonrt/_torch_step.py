"""Implements the step of muonrt.torch.Muon: reads parameters, settings and gradients, and then runs
the core's step."""

import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch

import muonrt
from muonrt import _torch_ranks as ranks
from muonrt._torch_params import Registered
from muonrt._torch_state import raw_of


class Steps(Registered):
    """Implements the methods of muonrt.torch.Muon that run steps."""

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """Returns True to torch's GradScaler, which then sets grad_scale and found_inf before a
        step, so that all ranks skip the step together. Returns False to other callers, because
        Lightning clips gradients only if this attribute is False."""
        return sys._getframe(1).f_globals.get("__name__", "").startswith("torch.")

    def step(self, closure: Callable[[], Any] | None = None, *,
             qk_logits: torch.Tensor | dict[int, torch.Tensor] | None = None):
        """Runs one step, which updates every parameter or none. Collective.

        With ``sync=False``, the step may still be running when the call returns; see `wait`.

        `last_report` is the report of the last completed step. A parameter that has no gradient on
        any rank does not take part in the step. If only some ranks have a gradient for a parameter,
        the missing gradients count as zero.

        :param closure: a function that computes the gradients and returns the loss.
        :param qk_logits: the largest attention logit of each query head on this rank, in float32,
            if parameters have "qk_clip". Pass one tensor, as for muonrt.Optimizer.step, or a dict
            with one tensor for each layer. If the dict contains a layer without "qk_clip", muonrt
            prints a warning.
        :return: the loss of the closure, or None.
        """
        self.wait()
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        grads, rates, given = self._arguments(qk_logits, self._sync)
        if self._sync:
            with torch.no_grad(), ranks.on_device(self._device):
                self._finish(self._step(grads, rates, given), grads, not_marked=True)
        else:
            self._begin(grads, rates, given)
        return loss

    def prepare(self, *, qk_logits: torch.Tensor | dict[int, torch.Tensor] | None = None) -> None:
        """Prepares a step: reads parameters, settings and gradients. If the placements of a
        gradient differ from those of its parameter, redistributes the gradient. `compute` then
        begins the step, and `wait` completes it.

        Until you call `compute`, do not write to gradients or parameters. Until then, you can call
        only `compute`, `close`, and `zero_grad`, which discards the prepared step. If `prepare`
        raises an error on one rank, call `wait` on all ranks; `wait` then raises the error on the
        other ranks. Hooks registered for `step` do not run.

        :param qk_logits: as for `step`.
        """
        self.wait()
        self._prepared = self._arguments(qk_logits, False)

    def compute(self) -> None:
        """Begins the prepared step, and returns before the step is complete, like `step` with
        ``sync=False``. The ranks exchange gradients, orthogonalize matrices, vote, and update
        every parameter or none. `wait` completes the step. Collective.
        """
        prepared, self._prepared = self._prepared, None
        if prepared is None:
            raise muonrt.InvalidStateError("compute: no step is prepared; call prepare() first")
        self._begin(*prepared)
        self._opt_called = True  # otherwise torch's schedulers warn that step() was not called

    def _arguments(self, qk_logits, sync: bool) -> tuple[list, list[float], dict]:
        """Registers the memory that the next step reads. Returns the gradients, the learning rates
        and the other arguments of the step."""
        with torch.no_grad(), ranks.on_device(self._device):
            try:
                self._follow()
                self._send_settings()
                grads = [self._gradient_of(name, p) for name, p in zip(self._names, self._params)]
                self._set_grads(grads)
                rates = [float(group["lr"]) for group in self.param_groups]
                given = self._scaler() | {"stream": ranks.stream_of(self._device)}
                if qk_logits is not None:
                    given["qk_logits"] = self._logits(qk_logits)
                return grads, rates, given
            except Exception:
                self._vote_to_reject(sync)
                raise
            except BaseException:  # Ctrl-C
                self._comm.abort("interrupted by a signal")
                raise

    def _begin(self, grads: list, rates: list[float], given: dict) -> None:
        with torch.no_grad(), ranks.on_device(self._device):
            self._core.step_async(rates, [i for i, g in enumerate(grads) if g is None], **given)
            self._in_flight = grads
            if self._device.type == "cuda":
                self._mark_written(grads)  # in the order of the current stream

    def wait(self) -> None:
        """Completes the step that `compute`, or `step` with ``sync=False``, has begun. Raises the
        errors of the step, and sets `last_report`. If no step is in flight, does nothing.
        Collective.

        `step` and all methods that access the state call `wait` themselves. If the parameters are
        in host memory, call `wait` or `zero_grad` before you use the parameters or write to
        gradients. On CUDA this is not necessary, because the current stream waits for the step.
        """
        if self._prepared is not None:
            raise muonrt.InvalidStateError(
                "a step is prepared, but has not begun; call compute() first, or zero_grad() to discard it")
        grads, self._in_flight = self._in_flight, None
        if grads is None:
            return
        with torch.no_grad(), ranks.on_device(self._device):
            try:
                report = self._core.wait()
            except muonrt.Error:
                if grads:  # otherwise this rank has already raised the error
                    raise
                return
            self._finish(report, grads, not_marked=self._device.type == "cpu")

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Resets the gradients, and discards a prepared step. If the parameters are in host memory,
        first completes a step that is in flight."""
        self._prepared = None
        if self._device.type == "cpu":
            self.wait()
        super().zero_grad(set_to_none)

    def _finish(self, report: muonrt.StepReport, grads: list, *, not_marked: bool) -> None:
        self.last_report = report
        if not report.skipped:
            if all(g is None for g in grads):
                self._refuse_empty_step()
            if not_marked:
                self._mark_written(grads)
            self._state_tensors.read_steps()

    def _mark_written(self, grads: list) -> None:
        torch.autograd.graph.increment_version(
            [raw_of(p) for g, p in zip(grads, self._params) if g is not None])
        self._write_back()

    def _logits(self, given: torch.Tensor | dict[int, torch.Tensor]) -> torch.Tensor | None:
        def tensor(values) -> torch.Tensor:
            return torch.as_tensor(values, dtype=torch.float32, device=self._device)
        if not isinstance(given, dict):
            return tensor(given).contiguous()
        layers = self._core.qk_layers()
        for layer, heads in layers:
            found = tensor(given[layer]).numel() if layer in given else None
            if found != heads:
                raise muonrt.InvalidArgumentError(
                    f"qk_logits: layer {layer} has {found} values, but {heads} query heads; pass one "
                    "value for each head of every layer with qk_clip, -inf for heads of other ranks")
        unused = sorted(set(given) - {layer for layer, _ in layers})
        if unused:
            warnings.warn(f"qk_logits: the logits of layers {unused} have no effect, because no "
                          "parameter of these layers has qk_clip", stacklevel=4)
        if not layers:
            return None
        return torch.cat([tensor(given[layer]).reshape(-1) for layer, _ in layers])

    def _gradient_of(self, name: str, p: torch.Tensor) -> torch.Tensor | None:
        grad = p.grad
        if grad is None:
            # FSDP1 does not set the gradient of an empty shard, so pass another empty tensor.
            is_empty = p.numel() == 0 and id(p) in self._flat and self._flat[id(p)].has_gradient()
            return p.detach() if is_empty else None
        if grad.layout != torch.strided:
            raise muonrt.InvalidArgumentError(
                f"param '{name}': the gradient has layout {grad.layout}; pass a dense "
                "gradient, for example of nn.Embedding(sparse=False)")
        if ranks.is_dtensor(p):
            if grad.placements != p.placements:
                grad = grad.redistribute(placements=p.placements)
            grad = ranks.local_of(grad)
        return (grad.detach() if grad.requires_grad else grad).contiguous()

    def _set_grads(self, grads: list) -> None:
        """Passes the addresses of the gradients to the core, because exporting them through DLPack
        would take longer than updating a small parameter."""
        addresses = []
        for grad, (_, dtype, shape, _, device) in zip(grads, self._memory):
            if grad is None:
                addresses.append(0)
            elif grad.dtype is dtype and grad.shape == shape and grad.device == device:
                addresses.append(grad.data_ptr())
            else:
                return self._core.set_grads(grads)  # this call rejects the gradient
        self._core._set_grad_addresses(addresses, grads)

    def _send_settings(self) -> None:
        for i, group in enumerate(self.param_groups):
            settings = self._group_settings(group)
            if settings != self._sent[i]:
                self._core.set_group(i, **settings)
                self._sent[i] = settings

    def _scaler(self) -> dict:
        """Returns the arguments that torch.amp.GradScaler has set for the step."""
        scale, found = getattr(self, "grad_scale", None), getattr(self, "found_inf", None)
        # On CUDA these values stay on the GPU, so that the host does not wait for them.
        if self._device.type == "cuda":
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

    def _refuse_empty_step(self) -> None:
        """Undoes the count of the last step, in which no rank had a gradient, and raises an error
        on every rank."""
        counts = self._core.update_counts
        self._core.steps -= 1
        self._core.update_counts = counts
        raise muonrt.InvalidStateError(
            f"none of the {len(self._params)} parameters has a gradient on any rank, so the step changes "
            "nothing; call backward() before step(), or create a new optimizer if the parameters of the "
            "model were replaced")

    def _vote_to_reject(self, sync: bool) -> None:
        """Takes part in the other ranks' step, but passes no gradients, so that these ranks raise
        an error instead of waiting."""
        if self._core is not None and self._comm.size > 1:
            self._core.set_grads([None] * len(self._params))
            rates, stream = [1.0] * len(self.param_groups), ranks.stream_of(self._device)
            try:
                if sync:
                    self._core.step(rates, stream=stream)
                else:  # wait() is collective, so this rank must take part in it
                    self._core.step_async(rates, stream=stream)
                    self._in_flight = []
            except muonrt.Error:
                pass
