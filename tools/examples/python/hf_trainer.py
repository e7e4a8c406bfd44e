"""Trains a tiny Llama with the Trainer of transformers, and resumes from its last checkpoint.

  python hf_trainer.py FOLDER [STEPS]
  torchrun --standalone --nproc-per-node 2 hf_trainer.py FOLDER [STEPS]
"""

import os
import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

import muonrt.torch


class Counting(torch.utils.data.Dataset):
    """A dataset of sequences of consecutive numbers."""

    def __len__(self):
        return 128

    def __getitem__(self, i):
        tokens = (torch.arange(12) + i) % 48
        return {"input_ids": tokens, "labels": tokens}


def tiny_llama():
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=48, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=16))


def main(folder, steps=16):
    ranks = int(os.environ.get("WORLD_SIZE", 1))
    arguments = TrainingArguments(
        output_dir=folder, max_steps=steps, per_device_train_batch_size=8 // ranks, learning_rate=1e-2,
        lr_scheduler_type="constant", max_grad_norm=1.0, logging_steps=1, save_steps=8, seed=0,
        use_cpu=not torch.cuda.is_available(), report_to=[], disable_tqdm=True)
    # The Trainer creates two groups, with and without weight decay, and muonrt splits each of them
    # by role.
    trainer = Trainer(model=tiny_llama(), args=arguments, train_dataset=Counting(),
                      optimizer_cls_and_kwargs=(muonrt.torch.Muon, {"lr": 1e-2}))
    # If the model is not wrapped, the next line does the same with muonrt's default weight decay:
    #   Trainer(..., optimizers=(muonrt.torch.Muon(model, lr=1e-2), None))
    last = get_last_checkpoint(folder) if os.path.isdir(folder) else None
    trainer.train(resume_from_checkpoint=last)
    losses = {e["step"]: e["loss"] for e in trainer.state.log_history if "loss" in e}
    if trainer.is_world_process_zero():
        print(f"{ranks} ranks, after {last or 'no checkpoint'}: loss {losses[steps]:.6f} at step {steps}")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
