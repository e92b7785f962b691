"""Train a small transformer on the source of Python's standard library, in a plain PyTorch loop.

torchrun --nproc-per-node 4 -m examples.plain_loop

The same command continues from the newest checkpoint in the folder.
"""

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.nn.parallel import DistributedDataParallel

import lightning_hier
from examples.language import small_loop


def main() -> None:
    """Train on all ranks that torchrun has started."""
    args = small_loop.options("outputs/plain_loop")
    dist.init_process_group("gloo")
    groups = lightning_hier.Groups(args.group_size)
    train, valid = small_loop.loaders(args.path)  # each rank reads other batches
    model = small_loop.transformer()
    ddp = DistributedDataParallel(model, process_group=groups.group)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.steps)
    blocks = lightning_hier.attach(
        ddp,
        optimizer,
        groups=groups,
        block_sync=lightning_hier.BMUFAdam(),
        total_steps=args.steps,
    )
    run = {"blocks": blocks, "schedule": schedule}
    if newest := max(args.folder.glob("*/.metadata"), default=None):
        dcp.load(run, checkpoint_id=newest.parent)

    batches = small_loop.batches_from(schedule.last_epoch, train)
    for step in range(schedule.last_epoch + 1, args.steps + 1):
        loss = small_loop.loss_of(ddp, *next(batches))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(ddp.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        blocks.step()
        schedule.step()
        if step % args.save_every == 0:
            with blocks.global_model():
                valid_loss = small_loop.mean_loss(model, valid)
            dcp.save(run, checkpoint_id=args.folder / f"{step:06d}")
            if dist.get_rank() == 0:
                print(f"step {step}: loss {loss:.3f}, global model {valid_loss:.3f}", flush=True)
    blocks.finish()
    if dist.get_rank() == 0:
        torch.save(model.state_dict(), args.folder / "model.pt")


if __name__ == "__main__":
    main()
