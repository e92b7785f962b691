"""The loop of ``examples/plain_loop.py`` with Accelerate, which wraps, accumulates and clips.

torchrun --nproc-per-node 4 -m examples.accelerate_loop
"""

import torch
import torch.distributed.checkpoint as dcp
from accelerate import Accelerator, DistributedDataParallelKwargs

import lightning_hier
from examples.language import small_loop


def main() -> None:
    """Train on all ranks that torchrun has started."""
    args = small_loop.options("outputs/accelerate_loop")
    # DDP would broadcast buffers from rank 0 to all ranks at every step.
    ddp = DistributedDataParallelKwargs(broadcast_buffers=False)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2, kwargs_handlers=[ddp])
    train, valid = small_loop.loaders(args.path)  # each rank reads other batches
    optimizer = torch.optim.AdamW((module := small_loop.transformer()).parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.steps)
    model, optimizer = accelerator.prepare(module, optimizer)  # DDP over all ranks
    blocks = lightning_hier.attach(
        model,
        optimizer,
        groups=lightning_hier.Groups(args.group_size),
        block_sync=lightning_hier.BMUFAdam(),
        total_steps=args.steps,
        grad_scaler=accelerator.scaler,
    )
    run = {"blocks": blocks, "schedule": schedule}
    if newest := max(args.folder.glob("*/.metadata"), default=None):
        dcp.load(run, checkpoint_id=newest.parent)

    batches = small_loop.batches_from(2 * schedule.last_epoch, train)
    while schedule.last_epoch < args.steps:
        with accelerator.accumulate(model):
            loss = small_loop.loss_of(model, *next(batches))
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        if not accelerator.sync_gradients:
            continue
        blocks.step()  # where the optimizer has stepped
        schedule.step()
        if (step := schedule.last_epoch) % args.save_every == 0:
            with blocks.global_model():
                valid_loss = small_loop.mean_loss(module, valid)
            dcp.save(run, checkpoint_id=args.folder / f"{step:06d}")
            accelerator.print(f"step {step}: loss {loss:.3f}, global model {valid_loss:.3f}")
    blocks.finish()
    accelerator.save(module.state_dict(), args.folder / "model.pt")


if __name__ == "__main__":
    main()
