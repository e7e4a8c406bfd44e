"""Trains a small convolutional network in one process, with a scheduler, clipping and a checkpoint.

  python torch_single.py
"""

import io

import torch

import muonrt.torch

STEPS = 240


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(1, 12, 3, padding=1)
        self.inner = torch.nn.Linear(12 * 16, 48)
        self.head = torch.nn.Linear(48, 4)

    def forward(self, x):
        x = torch.nn.functional.max_pool2d(torch.relu(self.conv(x)), 2)
        return self.head(torch.relu(self.inner(x.flatten(1))))


def role(name, p):
    # A kernel of n0 x n1 x 3 x 3 becomes a matrix of n0 x 9 n1. Names and shapes determine the
    # other roles.
    return ("muon", "flatten") if p.ndim == 4 else None


def main():
    torch.manual_seed(0)
    images = torch.rand(256, 1, 8, 8)
    labels = images[:, 0].unfold(1, 4, 4).unfold(2, 4, 4).mean((-1, -2)).flatten(1).argmax(1)
    model = Network()
    optimizer = muonrt.torch.Muon(model.named_parameters(), lr=1e-2, role=role)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step == STEPS // 2:
            file = io.BytesIO()
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(),
                        "schedule": schedule.state_dict()}, file)
    print(f"loss {loss.item():.4f} after {optimizer.last_report.step} steps")
    assert loss.item() < 0.7  # random guesses have the loss log 4 = 1.39

    # A run that continues from the checkpoint must have bitwise identical results.
    file.seek(0)
    saved = torch.load(file)
    again = Network()
    again.load_state_dict(saved["model"])
    other = muonrt.torch.Muon(again.named_parameters(), role=role)
    other.load_state_dict(saved["optimizer"])
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(other, STEPS)
    schedule.load_state_dict(saved["schedule"])
    for _ in range(STEPS // 2 + 1, STEPS):
        other.zero_grad()
        torch.nn.functional.cross_entropy(again(images), labels).backward()
        torch.nn.utils.clip_grad_norm_(again.parameters(), 1.0)
        other.step()
        schedule.step()
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), again.parameters()))


if __name__ == "__main__":
    main()
