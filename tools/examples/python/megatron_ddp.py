"""Trains with Megatron-LM's DistributedDataParallel and FP32Optimizer, without its distributed optimizer.

  torchrun --standalone --nproc-per-node 2 megatron_ddp.py FOLDER [STEPS]
"""

import os
import sys

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.optimizer import OptimizerConfig
from megatron.core.optimizer.optimizer import FP32Optimizer
from megatron.core.transformer import MegatronModule, TransformerConfig

import muonrt.torch


class TinyModel(MegatronModule):
    def __init__(self, config):
        super().__init__(config)
        torch.manual_seed(0)
        self.layers = torch.nn.Sequential(torch.nn.Linear(12, 32), torch.nn.Tanh(), torch.nn.Linear(32, 32),
                                          torch.nn.Tanh())
        self.output_layer = torch.nn.Linear(32, 6)

    def forward(self, inputs):
        return self.output_layer(self.layers(inputs))


def main(folder, steps=16):
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    parallel_state.initialize_model_parallel()
    config = TransformerConfig(num_layers=1, hidden_size=32, num_attention_heads=1)
    module = TinyModel(config).to(torch.cuda.current_device())
    model = DistributedDataParallel(config, DistributedDataParallelConfig(use_distributed_optimizer=False), module)
    # Every rank in the data-parallel group holds all parameters, but muonrt orthogonalizes each
    # matrix on only one rank.
    muon = muonrt.torch.Muon(module, lr=1e-2, process_group=parallel_state.get_data_parallel_group())
    clip = 1.0 if torch.cuda.is_available() else 0.0  # Megatron clips only CUDA tensors
    optimizer = FP32Optimizer(muon, OptimizerConfig(clip_grad=clip), lambda opt, config=None: None)
    optimizer.grad_stats_parallel_group = parallel_state.get_model_parallel_group()
    saved = os.path.join(folder, "last.pt")
    first = 0
    if os.path.exists(saved):
        state = torch.load(saved, weights_only=False)
        module.load_state_dict(state["model"])
        # Do not use Megatron's load_state_dict(), which identifies groups by its own keys.
        muon.load_state_dict(state["optimizer"])
        first = muon.param_groups[0]["steps"]
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
        torch.save({"model": module.state_dict(), "optimizer": muon.state_dict()}, saved)
        print(f"{size} ranks, after step {first}: loss {total:.6f} at step {steps}")
    muon.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
