"""Trains with Megatron-LM and an optimizer that it finds in the registry of Emerging-Optimizers.

  torchrun --standalone --nproc-per-node 2 megatron_registry.py FOLDER [STEPS [OPTIMIZER]]
"""

import os
import sys

import emerging_optimizers.registry
import torch
import torch.distributed as dist

import muonrt.torch


# Register the name before the first import of Megatron, because this import copies the registry.
@emerging_optimizers.registry.register_optimizer("muonrt")
class MegatronMuon(muonrt.torch.Muon):
    """Updates matrices as Megatron's Muon does. Megatron's own AdamW updates all other
    parameters."""

    def __init__(self, params, lr=3e-4, weight_decay=0.01, muon_momentum=0.95, muon_nesterov=False, betas=None):
        super().__init__(params, lr=lr, weight_decay=weight_decay, momentum=muon_momentum, nesterov=muon_nesterov,
                         preset="emerging", role=lambda name, p: "muon",
                         process_group=parallel_state.get_data_parallel_group())

    def _init_group(self, group, skip_non_grad_params=True):
        """Does nothing, because the constructor creates all state. Megatron calls this method
        before it loads a checkpoint."""


from megatron.core import parallel_state  # noqa: E402
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig  # noqa: E402
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer  # noqa: E402
from megatron.core.transformer import TransformerConfig  # noqa: E402
from megatron_ddp import TinyModel  # noqa: E402


def main(folder, steps=16, name="muonrt"):
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    parallel_state.initialize_model_parallel()
    config = TransformerConfig(num_layers=1, hidden_size=32, num_attention_heads=1)
    module = TinyModel(config).to(torch.cuda.current_device())
    module.output_layer.weight.is_embedding_or_output_parameter = True
    model = DistributedDataParallel(config, DistributedDataParallelConfig(use_distributed_optimizer=False), module)
    clip = 1.0 if torch.cuda.is_available() else 0.0  # Megatron clips only CUDA tensors
    optimizer = get_megatron_optimizer(OptimizerConfig(
        optimizer=name, lr=1e-2, min_lr=1e-2, weight_decay=0.01, clip_grad=clip), [model])
    saved = os.path.join(folder, "last.pt")
    first = 0
    if os.path.exists(saved):
        state = torch.load(saved, weights_only=False)
        module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["steps"]
    rank, size = dist.get_rank(), dist.get_world_size()
    inputs, targets = torch.randn(2, 64, 12)[:, rank::size].to(torch.cuda.current_device())
    for _ in range(first, steps):
        model.zero_grad_buffer()
        optimizer.zero_grad()
        loss = (model(inputs) - targets[:, :6]).square().mean()
        loss.backward()
        model.finish_grad_sync()
        optimizer.step()
    total = loss.detach() / size
    dist.all_reduce(total)
    if rank == 0:
        os.makedirs(folder, exist_ok=True)
        torch.save({"model": module.state_dict(), "optimizer": optimizer.state_dict(), "steps": steps}, saved)
        print(f"{size} ranks, after step {first}: loss {total:.6f} at step {steps}")
    for chained in optimizer.chained_optimizers:
        if isinstance(chained.optimizer, MegatronMuon):
            chained.optimizer.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:3]), *sys.argv[3:])
