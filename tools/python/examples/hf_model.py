"""Trains a tiny random Llama of transformers; roles follow from its parameters' names.

  python hf_model.py
"""

import torch
from transformers import LlamaConfig, LlamaForCausalLM, get_cosine_schedule_with_warmup

import muonrt.torch

STEPS = 60


def main():
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=88, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64))
    optimizer = muonrt.torch.Muon(model.named_parameters(), lr=1e-2)
    names = {group["role"]: len(group["params"]) for group in optimizer.param_groups}
    print(f"Muon updates {names['muon']} matrices, AdamW {names['adamw']} embeddings, heads and norms")
    assert names == {"muon": 2 * 7, "adamw": 2 + 2 * 2 + 1}
    schedule = get_cosine_schedule_with_warmup(optimizer, 4, STEPS)
    tokens = (torch.arange(16 * 32) * 7 % 61).reshape(16, 32)
    first = None
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        first = loss.item() if first is None else first
    print(f"loss {first:.4f} -> {loss.item():.4f}")
    assert loss.item() < first / 4


if __name__ == "__main__":
    main()
