"""GPT-2 of transformers with LoRA adapters of peft: nothing but the adapters travels.

python -m examples.recipes.lora bmuf_adam

An adapter adds the product B A to a frozen weight. Groups average B and A, and the mean of B times
the mean of A is not the mean of B A (docs/reports/foreign.md), but for ``LoRA(train_a=False)``.
"""

import sys

import lightning.pytorch as pl
import torch
from peft import LoraConfig, get_peft_model
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel


def texts(number, seed, factor):
    """Texts of a language in which the next letter follows from the last, nine times of ten."""
    random = torch.Generator().manual_seed(seed)
    letters = torch.randint(32, (number, 32), generator=random)
    free = torch.rand(number, 32, generator=random) < 0.1
    for i in range(1, 32):
        letters[~free[:, i], i] = (letters[~free[:, i], i - 1] * factor + 3) % 32
    return letters


def pretrained():
    """A model of another language. It stands for ``GPT2LMHeadModel.from_pretrained("gpt2")``."""
    sizes = {"vocab_size": 32, "n_positions": 32, "n_embd": 64, "n_layer": 2, "n_head": 4}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = GPT2LMHeadModel(GPT2Config(**sizes))
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        for batch in texts(3200, 0, factor=5).split(32):
            model(input_ids=batch, labels=batch).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return model


class LoRA(pl.LightningModule):
    """The frozen model with adapters."""

    def __init__(self, train_a=True):
        super().__init__()
        settings = {"r": 4, "lora_alpha": 16, "fan_in_fan_out": True, "task_type": "CAUSAL_LM"}
        config = LoraConfig(target_modules="all-linear", **settings)
        self.model = get_peft_model(pretrained(), config)
        for name, weight in self.model.named_parameters():
            if "lora_A" in name and not train_a:
                weight.requires_grad = False

    def training_step(self, batch, batch_idx):
        return self.model(input_ids=batch, labels=batch).loss

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.training_step(batch, batch_idx), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=2e-3)


def main(strategy="bmuf_adam", seed=0, steps=60, train_a=True):
    """Train the adapters, and save them as peft does."""
    import lightning_hier  # noqa: F401  # registers the names

    pl.seed_everything(seed, workers=True)
    module, val = LoRA(train_a), DataLoader(texts(256, 2, factor=11), batch_size=32)
    train = DataLoader(texts(3840, 1, factor=11), batch_size=16, shuffle=True)
    trainer = pl.Trainer(strategy=strategy, accelerator="cpu", devices=2, max_steps=steps)
    trainer.fit(module, train, val)
    trainer.validate(module, val)
    if trainer.is_global_zero:  # all ranks hold the global model
        module.model.save_pretrained("outputs/adapters")
    return trainer


if __name__ == "__main__":
    main(*sys.argv[1:2])
