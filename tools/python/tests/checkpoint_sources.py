"""Muon of Moonlight and of microsoft/dion, from their published formulas: small, in float64.

State and settings have the names of MoonshotAI/Moonlight c2ad5b2 (examples/toy_train.py) and of
microsoft/dion 0a059a4 (dion/muon.py, scalar_opts.py, polar_express.py).
"""

import numpy as np
import torch

KELLER_JORDAN = [(3.4445, -4.7750, 2.0315)] * 5
DION = [(8.156554524902461, -22.48329292557795, 15.878769915207462),
        (4.042929935166739, -2.808917465908714, 0.5000178451051316),
        (3.8916678022926607, -2.772484153217685, 0.5060648178503393),
        (3.285753657755655, -2.3681294933425376, 0.46449024233003106),
        (2.3465413258596377, -1.7097828382687081, 0.42323551169305323)]


def orthogonalize(matrix, coefficients, norm):
    """Odd polynomials of degree five of matrix / norm(|matrix|), one after the other."""
    x = matrix.double().numpy()
    tall = x.shape[0] > x.shape[1]
    x = (x.T if tall else x) / norm(np.linalg.norm(x))
    for a, b, c in coefficients:
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return torch.from_numpy(x.T if tall else x)


class _Source(torch.optim.Optimizer):
    def _adam(self, p, m, v, betas, number):
        grad = p.grad
        m.lerp_(grad, 1 - betas[0])
        v.lerp_(grad.square(), 1 - betas[1])
        return 1 - betas[0]**number, 1 - betas[1]**number


class Moonlight(_Source):
    def __init__(self, muon_params, adamw_params, lr=1e-3, wd=0.1):
        super().__init__(muon_params + adamw_params, dict(
            lr=lr, wd=wd, momentum=0.95, nesterov=True, ns_steps=5, adamw_betas=(0.9, 0.95),
            adamw_eps=1e-8))
        for p in muon_params + adamw_params:
            self.state[p]["use_muon"] = any(p is q for q in muon_params)

    @torch.no_grad()
    def step(self):
        group = self.param_groups[0]
        lr, momentum, eps = group["lr"], group["momentum"], group["adamw_eps"]
        for p in group["params"]:
            state = self.state[p]
            p.mul_(1 - lr * group["wd"])
            if state["use_muon"]:
                ball = state.setdefault("momentum_buffer", torch.zeros_like(p))
                ball.mul_(momentum).add_(p.grad)
                update = orthogonalize(p.grad + momentum * ball, KELLER_JORDAN,
                                       lambda norm: max(norm, 1e-7))
                p.sub_(lr * 0.2 * max(p.shape)**0.5 * update)
                continue
            state.setdefault("step", 0)
            state["step"] += 1
            m, v = (state.setdefault(k, torch.zeros_like(p)) for k in ("moment1", "moment2"))
            c1, c2 = self._adam(p, m, v, group["adamw_betas"], state["step"])
            p.sub_(lr * c2**0.5 / c1 * m / (eps + v.sqrt()))


class Dion(_Source):
    def __init__(self, groups, lr=0.01):
        super().__init__(groups, dict(
            lr=lr, mu=0.95, beta1=0.9, beta2=0.95, weight_decay=0.01, cautious_wd=False,
            algorithm="muon", step=0, epsilon=1e-8, nesterov=False, flatten=False,
            adjust_lr="spectral_norm"))
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["momentum"] = torch.zeros_like(p)
                if group["algorithm"] == "adamw":
                    self.state[p] |= {"variance": torch.zeros_like(p),
                                      "step_dev": torch.zeros(())}

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            group["step"] += 1
            lr = group["lr"]
            for p in group["params"]:
                state, momentum = self.state[p], self.state[p]["momentum"]
                p.mul_(1 - lr * group["weight_decay"])
                if group["algorithm"] == "muon":
                    momentum.mul_(group["mu"]).add_(p.grad)
                    update = orthogonalize(momentum, DION, lambda norm: 1.02 * norm + 1e-8)
                    p.sub_(lr * (p.shape[0] / p.shape[1])**0.5 * update)
                    continue
                state["step_dev"] += 1
                c1, c2 = self._adam(p, momentum, state["variance"],
                                    (group["beta1"], group["beta2"]), group["step"])
                p.sub_(lr / c1 * momentum / ((state["variance"] / c2).sqrt() + group["epsilon"]))
