"""The loop of ``examples/plain_loop.py`` with Fabric, which wraps, clips and saves.

fabric run --accelerator cpu --devices 4 examples/fabric_loop.py
"""

import torch
from lightning.fabric import Fabric

from examples.language import small_loop
from lightning_hier import BMUFAdam
from lightning_hier.fabric import HierarchicalStrategy


def main() -> None:
    """Train on all ranks that ``fabric run`` has started."""
    args = small_loop.options("outputs/fabric_loop")
    strategy = HierarchicalStrategy(
        group_size=args.group_size, block_sync=BMUFAdam(), total_steps=args.steps
    )
    fabric = Fabric(strategy=strategy)  # without `fabric run`, fabric.launch() starts the ranks
    train, valid = small_loop.loaders(args.path)  # each rank reads other batches
    module = small_loop.transformer()
    optimizer = torch.optim.AdamW(module.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.steps)
    model, optimizer = fabric.setup(module, optimizer)
    run = {"model": model, "optimizer": optimizer, "schedule": schedule}
    if newest := max(args.folder.glob("*.ckpt"), default=None):
        fabric.load(newest, run)

    batches = small_loop.batches_from(schedule.last_epoch, train)
    for step in range(schedule.last_epoch + 1, args.steps + 1):
        loss = small_loop.loss_of(model, *next(batches))
        fabric.backward(loss)
        fabric.clip_gradients(model, optimizer, max_norm=1.0)
        optimizer.step()  # counted, on every rank
        optimizer.zero_grad()
        schedule.step()
        if step % args.save_every == 0:
            with strategy.global_model():
                valid_loss = small_loop.mean_loss(module, valid)
            fabric.save(args.folder / f"{step:06d}.ckpt", run)
            fabric.print(f"step {step}: loss {loss:.3f}, global model {valid_loss:.3f}", flush=True)
    strategy.finish()  # the last, short block
    if fabric.is_global_zero:
        torch.save(module.state_dict(), args.folder / "model.pt")


if __name__ == "__main__":
    main()
