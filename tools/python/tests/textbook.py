"""Muon and AdamW from their formulas, in float64 NumPy; nothing of muonrt's is used."""

import numpy as np

KELLER_JORDAN = (3.4445, -4.7750, 2.0315)
# muonrt's settings that say the same: f32 wherever it may round.
MUON = dict(coefficients="keller_jordan", normalize="max_eps", scale_rule="original")
EXACT = dict(transport_dtype="float32", iteration_dtype="float32")


def newton_schulz(matrix, steps=5):
    x = matrix / max(np.linalg.norm(matrix), 1e-7)
    tall = x.shape[0] > x.shape[1]
    x = x.T if tall else x
    a, b, c = KELLER_JORDAN
    for _ in range(steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if tall else x


class Muon:
    def __init__(self, weight, momentum=0.95, weight_decay=0.1):
        self.weight = weight.astype(np.float64)
        self.buffer = np.zeros_like(self.weight)
        self.momentum, self.weight_decay = momentum, weight_decay

    def step(self, grad, lr):
        grad = grad.astype(np.float64)
        self.buffer = self.momentum * self.buffer + (1 - self.momentum) * grad
        direction = (1 - self.momentum) * grad + self.momentum * self.buffer  # Nesterov
        rows, cols = grad.shape
        update = np.sqrt(max(1.0, rows / cols)) * newton_schulz(direction)
        self.weight -= lr * self.weight_decay * self.weight
        self.weight -= lr * update


class AdamW:
    def __init__(self, weight, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.01):
        self.weight = weight.astype(np.float64)
        self.m, self.v = np.zeros_like(self.weight), np.zeros_like(self.weight)
        self.betas, self.eps, self.weight_decay, self.t = betas, eps, weight_decay, 0

    def step(self, grad, lr):
        grad = grad.astype(np.float64)
        self.t += 1
        b1, b2 = self.betas
        self.m = b1 * self.m + (1 - b1) * grad
        self.v = b2 * self.v + (1 - b2) * grad * grad
        m_hat, v_hat = self.m / (1 - b1**self.t), self.v / (1 - b2**self.t)
        self.weight -= lr * self.weight_decay * self.weight
        self.weight -= lr * m_hat / (np.sqrt(v_hat) + self.eps)
