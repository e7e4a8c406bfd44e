"""Trains with torchtitan's OptimizersContainer and FSDP2, and reshards its checkpoint with DCP.

  torchrun --standalone --nproc-per-node 2 torchtitan_fsdp2.py FOLDER [STEPS]
"""

import os
import sys
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.fsdp import fully_shard
from torchtitan.components.optimizer import OptimizersContainer, ParamGroupConfig

import muonrt.torch


class MuonContainer(OptimizersContainer):
    """Registers "muonrt" as an optimizer name in torchtitan's configuration."""

    @dataclass(kw_only=True, slots=True)
    class Config(OptimizersContainer.Config):
        pass

    @staticmethod
    def _resolve_optimizer_factory(name):
        return muonrt.torch.Muon if name == "muonrt" else OptimizersContainer._resolve_optimizer_factory(name)


def tiny_model():
    torch.manual_seed(0)
    model = torch.nn.Sequential()
    model.add_module("tok_embeddings", torch.nn.Embedding(48, 32))
    model.add_module("layers", torch.nn.Sequential(torch.nn.Linear(32, 96), torch.nn.GELU(),
                                                   torch.nn.Linear(96, 32)))
    model.add_module("norm", torch.nn.RMSNorm(32))
    model.add_module("output", torch.nn.Linear(32, 48, bias=False))
    return fully_shard(model)


def main(folder, steps=16):
    dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    model = tiny_model()
    config = MuonContainer.Config(implementation="for-loop", param_groups=[
        ParamGroupConfig(pattern=".*", optimizer_name="muonrt", optimizer_kwargs={"lr": 1e-2})])
    optimizers = config.build(model_parts=[model])
    first = 0
    if os.path.isdir(folder):
        saved = {"model": get_model_state_dict(model), "optimizer": optimizers.state_dict()}
        dcp.load(saved, checkpoint_id=folder)
        set_model_state_dict(model, saved["model"])
        optimizers.load_state_dict(saved["optimizer"])
        first = next(iter(optimizers)).param_groups[0]["steps"]
    tokens = torch.arange(96)[dist.get_rank()::dist.get_world_size()] % 48
    for _ in range(first, steps):
        optimizers.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(tokens), (tokens * tokens + 3) % 48)
        loss.backward()
        optimizers.step()
    dcp.save({"model": get_model_state_dict(model), "optimizer": optimizers.state_dict()}, checkpoint_id=folder)
    total = loss.detach() / dist.get_world_size()
    dist.all_reduce(total)
    if dist.get_rank() == 0:
        print(f"{dist.get_world_size()} ranks, after step {first}: loss {total:.6f} at step {steps}")
    for optimizer in optimizers:
        optimizer.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
