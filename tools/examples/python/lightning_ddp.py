"""Trains with Lightning in mixed precision, clips gradients, and resumes from its last checkpoint.

  python lightning_ddp.py FOLDER [STEPS]
  torchrun --standalone --nproc-per-node 2 lightning_ddp.py FOLDER [STEPS]
"""

import os
import sys

import lightning.pytorch as lightning
import torch

import muonrt.torch


class Regression(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body = torch.nn.Sequential(torch.nn.Linear(12, 32), torch.nn.Tanh(), torch.nn.Linear(32, 6))
        self.losses = []

    def training_step(self, batch, _):
        loss = (self.body(batch[0]) - batch[1]).square().mean()
        self.losses.append(loss.detach())
        return loss

    def configure_optimizers(self):
        optimizer = muonrt.torch.Muon(self, lr=1e-2)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 16)]


def main(folder, steps=16):
    ranks = int(os.environ.get("WORLD_SIZE", 1))
    model = Regression()
    data = torch.utils.data.TensorDataset(torch.randn(32, 12), torch.randn(32, 6))
    trainer = lightning.Trainer(
        max_steps=steps, accelerator="auto" if torch.cuda.is_available() else "cpu", devices=ranks,
        strategy="ddp" if ranks > 1 else "auto", precision="bf16-mixed",
        gradient_clip_val=0.5, logger=False, enable_progress_bar=False, enable_checkpointing=False,
        enable_model_summary=False)
    last = os.path.join(folder, "last.ckpt")
    resumes = os.path.exists(last)
    trainer.fit(model, torch.utils.data.DataLoader(data, batch_size=32 // ranks),
                **({"ckpt_path": last, "weights_only": False} if resumes else {}))
    trainer.save_checkpoint(last)
    loss = trainer.strategy.reduce(model.losses[-1], reduce_op="mean").item()
    if trainer.is_global_zero:
        print(f"{ranks} ranks, {'resumed' if resumes else 'new'}: loss {loss:.6f} at step {trainer.global_step}")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
