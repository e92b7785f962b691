"""Train on digits in Ray Train, on a local Ray instance or on a running cluster.

python -m examples.ray.train                                       four workers, one CPU each
python -m examples.ray.train --strategy psp --workers 2
python -m examples.ray.train --address auto --storage /shared/runs  on a cluster

On a cluster, this repository must be installed on every host, or be part of Ray's runtime
environment.
"""

from __future__ import annotations

import argparse
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import ray
import ray.train
from lightning.pytorch import Trainer
from ray.train import FailureConfig, Result, RunConfig, ScalingConfig
from ray.train.lightning import RayLightningEnvironment, RayTrainReportCallback
from ray.train.torch import TorchTrainer

from examples.image.digits import Images, ResNetClassifier


def train_worker(config: dict[str, Any]) -> None:
    """Train, from the newest checkpoint if Ray has restarted the workers."""
    # The import registers the strategies. It is here because Ray sends only this function.
    import lightning_hier  # noqa: F401

    trainer = Trainer(
        strategy=config["strategy"],
        accelerator=config["accelerator"],
        devices="auto",
        max_epochs=config["epochs"],
        plugins=[RayLightningEnvironment()],
        callbacks=[RayTrainReportCallback()],
        use_distributed_sampler=False,  # Images divides the data among the ranks
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = ResNetClassifier(learning_rate=0.02, decay_epochs=())
    checkpoint = ray.train.get_checkpoint()
    with checkpoint.as_directory() if checkpoint else nullcontext() as folder:
        path = Path(folder, RayTrainReportCallback.CHECKPOINT_NAME) if folder else None
        trainer.fit(model, Images(batch_images=16), ckpt_path=path)


def train(
    *, strategy: str, workers: int, epochs: int, storage: str | None, use_gpu: bool = False
) -> Result:
    """Train on workers of the running Ray instance, and restart them at most twice on failure."""
    trainer = TorchTrainer(
        train_worker,
        train_loop_config={
            "strategy": strategy,
            "epochs": epochs,
            "accelerator": "gpu" if use_gpu else "cpu",
        },
        scaling_config=ScalingConfig(num_workers=workers, use_gpu=use_gpu),
        run_config=RunConfig(storage_path=storage, failure_config=FailureConfig(max_failures=2)),
    )
    return trainer.fit()


def main() -> None:
    """Start Ray or connect to it, train, and print the accuracy of each checkpoint."""
    parser = argparse.ArgumentParser(description="Train on digits in Ray Train.")
    parser.add_argument("--strategy", default="bmuf", help="name of a lightning_hier strategy")
    parser.add_argument("--workers", type=int, default=4, help="number of workers")
    parser.add_argument("--epochs", type=int, default=10, help="number of epochs")
    parser.add_argument("--gpu", action="store_true", help="use one GPU for each worker")
    parser.add_argument(
        "--address", default="local", help="local: start Ray; auto: connect to a running cluster"
    )
    parser.add_argument("--storage", help="folder of checkpoints, shared by all hosts")
    options = parser.parse_args()
    local_options = {"num_cpus": options.workers, "include_dashboard": False}
    ray.init(address=options.address, **(local_options if options.address == "local" else {}))
    try:
        result = train(
            strategy=options.strategy,
            workers=options.workers,
            epochs=options.epochs,
            storage=options.storage,
            use_gpu=options.gpu,
        )
    finally:
        ray.shutdown()
    for checkpoint, metrics in result.best_checkpoints or []:
        accuracy = metrics["valid/accuracy"]
        print(f"epoch {metrics['epoch']}: valid accuracy {accuracy:.1%}, {checkpoint.path}")


if __name__ == "__main__":
    main()
