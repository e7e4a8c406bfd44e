"""Trains with DeepSpeed's ZeRO stage 1 or 2. Each rank updates one range of the model's elements.

  deepspeed --num_gpus 2 deepspeed_zero.py FOLDER [STEPS [STAGE]]
  torchrun --standalone --nproc-per-node 2 deepspeed_zero.py FOLDER [STEPS [STAGE]]
"""

import os
import sys

import deepspeed
import torch
import torch.distributed as dist

import muonrt.torch


class ZeroClient(torch.optim.Optimizer):
    """Runs muonrt.torch.Muon on ZeRO's partitions. On each rank, one flat tensor holds the
    gradients of the rank's partition."""

    def __init__(self, model, lr, **settings):
        self.settings = settings
        self.whole = [(name, p.shape, p.numel()) for name, p in model.named_parameters()]
        # Determine the roles by names and modules, before ZeRO replaces the parameters.
        alone = muonrt.torch.Muon(model, lr=lr, comm=muonrt.Comm.self(), **settings)
        self.roles = {name: group["role"] for group in alone.param_groups for name in group["param_names"]}
        alone.close()
        # Use a single group, so that each rank has a single partition.
        super().__init__([{"params": list(model.parameters())}], {"lr": lr})

    def step(self, closure=None):
        flat, = self.param_groups[0]["params"]
        for view, (begin, end) in self.views:
            view.grad = flat.grad[begin:end]
        for inner in self.muon.param_groups:
            inner["lr"] = self.param_groups[0]["lr"]
        self.muon.step()

    def bind(self):
        """Creates the optimizer. Call this method once after deepspeed.initialize(), which replaces
        the parameters with this rank's partition."""
        flat, = self.param_groups[0]["params"]
        rank, size, length = dist.get_rank(), dist.get_world_size(), flat.numel()
        mesh = muonrt.Mesh((size,), ["zero"])
        offset, self.views, params, layouts = 0, [], [], {}
        for name, shape, count in self.whole:
            bounds = [min(max(r * length - offset, 0), count) for r in range(size + 1)]
            ranges = list(zip(bounds, bounds[1:]))
            layouts[name] = {"layout": muonrt.Layout(mesh, flat=ranges), "shape": tuple(shape)}
            begin, end = (offset + bound - rank * length for bound in ranges[rank])
            view = torch.nn.Parameter(flat.detach()[begin:end] if end > begin else flat.detach()[:0])
            self.views.append((view, (begin, end) if end > begin else (0, 0)))
            params.append((name, view))
            offset += count
        self.muon = muonrt.torch.Muon(params, lr=self.param_groups[0]["lr"], **self.settings,
                                      role=lambda name, p: (self.roles[name], layouts[name]))


def main(folder, steps=16, stage=2):
    deepspeed.init_distributed("nccl" if torch.cuda.is_available() else "gloo")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(12, 32), torch.nn.Tanh(), torch.nn.Linear(32, 33), torch.nn.Tanh(),
                                torch.nn.Linear(33, 6))
    client = ZeroClient(model, lr=1e-2)
    engine, *_ = deepspeed.initialize(model=model, optimizer=client, config={
        "train_batch_size": 64, "zero_optimization": {"stage": stage}, "gradient_clipping": 1.0,
        "zero_allow_untested_optimizer": True})
    client.bind()
    first = 0
    if os.path.isdir(folder):
        engine.load_checkpoint(folder, load_optimizer_states=False)
        client.muon.load(os.path.join(folder, "muonrt"))  # can be loaded on any number of ranks
        first = engine.global_steps
    inputs, targets = torch.randn(2, 64, 12)[:, dist.get_rank()::dist.get_world_size()].to(engine.device)
    for _ in range(first, steps):
        loss = (engine(inputs) - targets[:, :6]).square().mean()
        engine.backward(loss)
        engine.step()
    engine.save_checkpoint(folder)
    client.muon.save(os.path.join(folder, "muonrt"))
    total = loss.detach() / dist.get_world_size()
    dist.all_reduce(total)
    if dist.get_rank() == 0:
        print(f"{dist.get_world_size()} ranks, after step {first}: loss {total:.6f} at step {steps}")
    client.muon.close()


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
