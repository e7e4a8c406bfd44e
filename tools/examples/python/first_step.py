"""Compares the first step of muonrt with the first step of torch.optim.Muon and AdamW.

  python first_step.py
"""

import copy

import torch

import muonrt.torch


def main():
    torch.manual_seed(0)
    # MOVING.md quotes the lines from here to the last print; tools/check/readme compares them.
    model = torch.nn.Sequential(torch.nn.Embedding(64, 32), torch.nn.Linear(32, 96),
                                torch.nn.GELU(), torch.nn.Linear(96, 32), torch.nn.Linear(32, 64))
    tokens = torch.randint(64, (256,))
    torch.nn.functional.cross_entropy(model(tokens), tokens.roll(-1)).backward()
    other = copy.deepcopy(model)
    for p, q in zip(model.parameters(), other.parameters()):
        q.grad = p.grad.clone()
    before = [p.detach().clone() for p in model.parameters()]

    ours = muonrt.torch.Muon(model, preset="torch", lr=0.02, adamw_lr=3e-4, transport_dtype="float32")
    names = {group["role"]: group["param_names"] for group in ours.param_groups}
    theirs = [cls([p for name, p in other.named_parameters() if name in names[role]], lr=lr)
              for role, cls, lr in (("muon", torch.optim.Muon, 0.02), ("adamw", torch.optim.AdamW, 3e-4))]
    for optimizer in [ours, *theirs]:
        optimizer.step()

    for (name, p), q, start in zip(model.named_parameters(), other.parameters(), before):
        mine, yours = (p - start).detach(), (q - start).detach()
        difference = (mine - yours).norm() / yours.norm()
        print(f"{name}: ratio {mine.norm() / yours.norm():.3f}, difference {100 * difference:.2f}%")
        assert difference < 0.05


if __name__ == "__main__":
    main()
