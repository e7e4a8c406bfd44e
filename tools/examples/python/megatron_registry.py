"""Trains with Megatron-LM, which finds muonrt in the registry of Emerging-Optimizers.

  torchrun --standalone --nproc-per-node 2 megatron_registry.py FOLDER [STEPS [MODE [OPTIMIZER]]]

MODE is fp32 (default), bf16, or layer-wise (bf16, under Megatron's LayerWiseDistributedOptimizer).
"""

import os
import sys

import emerging_optimizers.registry
import torch
import torch.distributed as dist

import muonrt.torch


# Register the name before the first import of Megatron, because this import copies the registry.
@emerging_optimizers.registry.register_optimizer("muonrt")
class MegatronMuon(torch.optim.Optimizer):
    """Updates the matrices in the same way as Megatron's Muon. Megatron's own AdamW updates all other parameters.

    After the constructor has returned, Megatron replaces bf16 parameters with float32 copies, and its layer-wise
    optimizer removes the matrices that other ranks update. So muonrt's optimizer is created before the first step."""

    def __init__(self, params, lr=3e-4, weight_decay=0.01, muon_momentum=0.95, muon_nesterov=False,
                 use_layer_wise_distributed_optimizer=False, betas=None):
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})
        self.settings = {"lr": lr, "momentum": muon_momentum, "nesterov": muon_nesterov, "preset": "emerging",
                         "role": lambda name, p: "muon"}
        if not use_layer_wise_distributed_optimizer:
            self.settings["process_group"] = parallel_state.get_data_parallel_group()
        self.muon = None

    def _init_group(self, group=None, skip_non_grad_params=True):
        """Creates muonrt's optimizer. Megatron calls this method before it loads a checkpoint."""
        groups = [{"params": [(f"group {i}, matrix {j}", p.requires_grad_()) for j, p in enumerate(g["params"])]}
                  for i, g in enumerate(self.param_groups) if g["params"]]
        if self.muon is None and groups:
            comm = None if "process_group" in self.settings else muonrt.Comm.self()
            self.muon = muonrt.torch.Muon(groups, comm=comm, **self.settings)
            self.share_state()

    def share_state(self):
        self.muon.state.update(self.state)
        self.state = self.muon.state

    def load_state_dict(self, state_dict):
        super().load_state_dict(state_dict)
        self._init_group()
        if self.muon is not None:
            self.share_state()

    @torch.no_grad()
    def step(self, closure=None):
        self._init_group()
        if self.muon is not None:  # a rank of the layer-wise optimizer may have no matrix
            for ours, group in zip(self.muon.param_groups, [g for g in self.param_groups if g["params"]]):
                ours.update(lr=group["lr"], weight_decay=group["weight_decay"])
            self.muon.step()

    def close(self):
        if self.muon is not None:
            self.muon.close()


from megatron.core import dist_checkpointing, parallel_state  # noqa: E402
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig  # noqa: E402
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer  # noqa: E402
from megatron.core.transformer import TransformerConfig  # noqa: E402
from megatron_ddp import TinyModel  # noqa: E402


def main(folder, steps=16, mode="fp32", name="muonrt"):
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    parallel_state.initialize_model_parallel()
    dtype = torch.float32 if mode == "fp32" else torch.bfloat16
    config = TransformerConfig(num_layers=1, hidden_size=32, num_attention_heads=1, params_dtype=dtype)
    module = TinyModel(config).to(torch.cuda.current_device(), dtype)
    module.output_layer.weight.is_embedding_or_output_parameter = True
    model = DistributedDataParallel(config, DistributedDataParallelConfig(grad_reduce_in_fp32=True), module)
    clip = 1.0 if torch.cuda.is_available() else 0.0  # Megatron clips only CUDA tensors
    optimizer = get_megatron_optimizer(OptimizerConfig(
        optimizer=name, lr=1e-2, min_lr=1e-2, weight_decay=0.01, clip_grad=clip, bf16=mode != "fp32",
        params_dtype=dtype, use_layer_wise_distributed_optimizer=mode == "layer-wise"), [model])

    def sharded(is_loading):
        of_model = module.sharded_state_dict()
        return {"model": of_model, "optimizer": optimizer.sharded_state_dict(of_model, is_loading=is_loading)}

    first = 0
    if os.path.exists(os.path.join(folder, "metadata.json")):
        state = dist_checkpointing.load(sharded(True) | {"steps": 0}, folder)
        module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["steps"]
    rank, size = dist.get_rank(), dist.get_world_size()
    inputs, targets = torch.randn(2, 64, 12)[:, rank::size].to(torch.cuda.current_device())
    for _ in range(first, steps):
        model.zero_grad_buffer()
        optimizer.zero_grad()
        loss = (model(inputs.to(dtype)).float() - targets[:, :6]).square().mean()
        loss.backward()
        model.finish_grad_sync()
        optimizer.step()
    total = loss.detach() / size
    dist.all_reduce(total)
    os.makedirs(folder, exist_ok=True)
    dist_checkpointing.save(sharded(False) | {"steps": steps}, folder)
    if rank == 0:
        print(f"{size} ranks, after step {first}: loss {total:.6f} at step {steps}")
    for chained in optimizer.chained_optimizers:
        if isinstance(chained.optimizer, MegatronMuon):
            chained.optimizer.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:3]), *sys.argv[3:])
