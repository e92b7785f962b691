"""BYOL of lightly: a teacher that follows the network, and is the same on all hosts at the end.

python -m examples.recipes.byol bmuf

The module follows that of lightly's documentation, for pictures of 24 x 24 pixels. Its teacher has
frozen weights, which the module moves towards its network at every step. They are averaged as the
network is.
"""

import copy
import sys

import lightning.pytorch as pl
import torch
from lightly.loss import NegativeCosineSimilarity
from lightly.models import ResNetGenerator
from lightly.models.modules import BYOLPredictionHead, BYOLProjectionHead
from lightly.models.utils import deactivate_requires_grad, update_momentum
from lightly.transforms import BYOLTransform, BYOLView1Transform, BYOLView2Transform
from lightly.utils.scheduler import cosine_schedule
from PIL import Image
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, default_collate


class BYOL(pl.LightningModule):
    """A network with a predictor, and its teacher."""

    def __init__(self):
        super().__init__()
        layers = list(ResNetGenerator("resnet-9", width=0.125).children())[:-1]
        self.backbone = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.network = nn.Sequential(self.backbone, BYOLProjectionHead(64, 64, 32))
        self.prediction_head = BYOLPredictionHead(32, 64, 32)
        self.teacher = copy.deepcopy(self.network)
        deactivate_requires_grad(self.teacher)

    def loss(self, views):
        own = [self.prediction_head(self.network(view)) for view in views]
        with torch.no_grad():
            taught = [self.teacher(view) for view in views]
        return 2 + sum(map(NegativeCosineSimilarity(), own, reversed(taught)))

    def training_step(self, views, batch_idx):
        momentum = cosine_schedule(self.global_step, self.trainer.max_steps, 0.9, 1)
        update_momentum(self.network, self.teacher, m=momentum)
        return self.loss(views)

    def validation_step(self, views, batch_idx):
        self.log("val_loss", self.loss(views), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.06, momentum=0.9)


def loader(first, last, **settings):
    """Two views of each of scikit-learn's digits."""
    transform = BYOLTransform(BYOLView1Transform(24), BYOLView2Transform(24))
    pictures = (15 * load_digits().images[first:last]).astype("uint8")
    digits = [Image.fromarray(picture).convert("RGB") for picture in pictures]
    settings["collate_fn"] = lambda some: default_collate([transform(digit) for digit in some])
    return DataLoader(digits, batch_size=16, **settings)  # type: ignore[arg-type]


def main(strategy="bmuf", seed=0, steps=60):
    """Train, and save what plain Lightning loads."""
    import lightning_hier  # noqa: F401  # registers the names

    pl.seed_everything(seed, workers=True)
    module, val = BYOL(), loader(1600, 1728)
    trainer = pl.Trainer(strategy=strategy, accelerator="cpu", devices=2, max_steps=steps)
    trainer.fit(module, loader(0, 1600, shuffle=True, drop_last=True), val)
    trainer.validate(module, val)
    trainer.save_checkpoint("outputs/byol.ckpt")
    return trainer


if __name__ == "__main__":
    main(*sys.argv[1:2])
