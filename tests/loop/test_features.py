"""What a plain loop may do: scaling, accumulation, clipping, several optimizers."""

from __future__ import annotations

import os
import warnings
from contextlib import nullcontext, suppress
from functools import partial
from itertools import chain
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
from torch.nn.parallel import DistributedDataParallel

import lightning_hier as lh
from tests.loop.loops import Loop, adam, batch, network
from tests.ranks import run_ranks
from tests.trainer.fitting import fits_on_ranks

SYNC: dict[str, Any] = {"block_sync": lh.BMUFAdam(block_size=3), "warmup_steps": 0}


def loss_of(loop: Loop, step: int) -> Tensor:
    inputs, targets = batch(step, dist.get_rank())
    loss: Tensor = (loop.model(inputs) - targets).square().mean()
    return loss


def scaled(skipped_step: int) -> tuple[int, float, Tensor]:
    """Updates of this rank, its scale, and the final model. Rank 0 skips the update of one step."""
    loop = Loop(1, **SYNC)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    updates = 0

    def count(*_: Any) -> None:
        nonlocal updates
        updates += 1

    loop.optimizer.register_step_post_hook(count)
    for step in range(7):
        loss = loss_of(loop, step)
        if step == skipped_step and dist.get_rank() == 0:
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        scaler.step(loop.optimizer)
        scaler.update()
        loop.optimizer.zero_grad()
        loop.blocks.step()
    loop.blocks.finish()
    return updates, scaler.get_scale(), loop.weights()


def test_ranks_stay_in_step_where_a_scaler_skips_an_update() -> None:
    first, second = run_ranks(scaled, 2, 4)
    assert (first[0], second[0]) == (6, 7)
    assert (first[1], second[1]) == (512.0, 1024.0)
    assert torch.equal(first[2], second[2]) and bool(first[2].isfinite().all())


def accumulated(passes: int) -> tuple[Tensor, int]:
    """The final model, and the number of all-reduces of gradients in the group."""
    loop = Loop(2, **SYNC)
    for step in range(6):
        inputs, targets = batch(step, dist.get_rank())
        for index, (part, target) in enumerate(
            zip(inputs.chunk(passes), targets.chunk(passes), strict=True)
        ):
            ddp: Any = loop.model
            with nullcontext() if index == passes - 1 else ddp.no_sync():
                ((loop.model(part) - target).square().mean() / passes).backward()
        nn.utils.clip_grad_norm_(loop.module.parameters(), 0.1)
        loop.optimizer.step()
        loop.optimizer.zero_grad()
        loop.blocks.step()
    loop.blocks.finish()
    return loop.weights(), loop.blocks.traffic.of("group", "gradients").calls


def test_accumulated_gradients_are_those_of_the_whole_batch() -> None:
    whole, divided = fits_on_ranks(4, partial(accumulated, 1), partial(accumulated, 3))
    torch.testing.assert_close(divided[0][0], whole[0][0])
    assert divided[0][1] == whole[0][1] == 6  # one bucket in every step


def divided_updates(optimizers: int, freezes: bool = False) -> Tensor:
    """GTC of updates in a group of 2, in blocks of a step, with one or two optimizers."""
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    module, groups = network(), lh.Groups(2)
    model = DistributedDataParallel(module, process_group=groups.group)
    parts = [module] if optimizers == 1 else [module[0], module[2]]
    own = [torch.optim.SGD(part.parameters(), lr=0.05, momentum=0.9) for part in parts]
    gtc = lh.GTC(density=0.3, dense_below=0)
    blocks = lh.attach(
        model, own, groups=groups, gradient_sync=gtc, block_sync=lh.ModelAveraging(block_size=1)
    )
    for step in range(8):
        inputs, targets = batch(step, dist.get_rank())
        (model(inputs) - targets).square().mean().backward()
        for optimizer in own:
            optimizer.step()
            optimizer.zero_grad()
        parts[0].requires_grad_(not freezes)
        blocks.step()
        module.requires_grad_(True)
    blocks.finish()
    return torch.cat([p.detach().reshape(-1) for p in module.parameters()])


def test_the_end_of_a_block_keeps_the_updates_of_other_optimizers() -> None:
    (one, _), (two, _) = fits_on_ranks(2, partial(divided_updates, 1), partial(divided_updates, 2))
    torch.testing.assert_close(two, one, rtol=1e-6, atol=1e-7)


def test_what_is_frozen_behind_its_step_keeps_its_update() -> None:
    """As a loop freezes the discriminator while it trains the generator."""
    runs = fits_on_ranks(2, *(partial(divided_updates, 2, freezes) for freezes in (False, True)))
    (without, _), (frozen, _) = runs
    assert torch.equal(frozen, without)


def bytes_across(wrap: str) -> list[int]:
    """Bytes across groups so far, after every step."""
    loop = Loop(2, wrap=wrap, **SYNC)
    seen = []
    for _ in range(7):
        loop.train(1)
        seen.append(loop.blocks.traffic.total("across").payload_bytes)
    return seen


def test_nothing_is_sent_across_groups_within_a_block() -> None:
    runs = fits_on_ranks(4, *(partial(bytes_across, wrap) for wrap in ("group", "world")))
    for seen in chain(*runs):
        assert seen[0] == seen[1] < seen[2] == seen[3] == seen[4] < seen[5] == seen[6]


def warmed_up(wrap: str) -> list[Tensor]:
    loop = Loop(1, wrap=wrap, block_sync=lh.BMUFAdam(block_size=9), warmup_steps=3)
    seen = []
    for _ in range(4):
        loop.train(1)
        seen.append(loop.weights())
    return seen


def test_the_warm_up_averages_over_all_ranks_without_wrapping_anew() -> None:
    """In groups of one rank, the bare module and DDP over the world are the same."""
    wraps = (partial(warmed_up, wrap) for wrap in ("group", "world"))
    *runs, (expected, _) = fits_on_ranks(2, *wraps, synchronous)
    for first, second in runs:
        for step in range(3):
            torch.testing.assert_close(first[step], expected[step])
            assert torch.equal(first[step], second[step])
        assert not torch.equal(first[3], second[3])


def synchronous() -> list[Tensor]:
    """Three steps of DDP."""
    module = network()
    model, seen = DistributedDataParallel(module), []
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.02)
    for step in range(3):
        inputs, targets = batch(step, dist.get_rank())
        (model(inputs) - targets).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        seen.append(torch.cat([p.detach().reshape(-1) for p in module.parameters()]))
    return seen


def looked(often: bool) -> Tensor:
    """The final model, of a run that looks at the global model after every step, or never."""
    loop = Loop(1, block_sync=lh.DiLoCo(block_size=4, fragments=2, overlap=1), warmup_steps=2)
    for _ in range(9):
        loop.train(1)
        if often:
            with loop.blocks.global_model(), torch.no_grad():
                loop.model.eval()(torch.zeros(1, 4))
            loop.model.train()
    loop.blocks.finish()
    return loop.weights()


def test_looking_at_the_global_model_changes_nothing() -> None:
    (without, _), (_, often) = fits_on_ranks(2, partial(looked, False), partial(looked, True))
    assert torch.equal(without, often)


def nadam(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.NAdam(module.parameters(), lr=0.02)


def saved_in_warm_up(saves: bool) -> Tensor:
    loop = Loop(1, make_optimizer=nadam, **{**SYNC, "warmup_steps": 4})
    loop.train(2)
    if saves:
        loop.blocks.state_dict()
    loop.train(6)
    return loop.weights()


def test_saving_in_the_warm_up_changes_nothing() -> None:
    """NAdam's product of decay rates is in single precision until blocks begin."""
    runs = fits_on_ranks(2, *(partial(saved_in_warm_up, saves) for saves in (False, True)))
    (without, _), (saving, _) = runs
    assert torch.equal(saving, without)


def failed_once() -> Tensor:
    """Weights after a step of the warm-up, in front of which a backward pass has failed."""
    loop = Loop(1, **{**SYNC, "warmup_steps": 4})
    fails = next(loop.module.parameters()).register_hook(lambda _: 1 / 0)
    with suppress(ZeroDivisionError):
        loss_of(loop, 0).backward()
    fails.remove()
    loop.optimizer.zero_grad()
    loop.train(1)
    return loop.weights()


def test_a_failed_backward_pass_does_not_end_the_averages_of_the_warm_up() -> None:
    first, second = run_ranks(failed_once, 2)
    assert torch.equal(first, second)


def read_and_compiled(does: bool) -> Tensor:
    """The final model, with a compiled step behind a read state of torch's checkpoints, or not."""
    loop = Loop(1, block_sync=lh.DiLoCo(block_size=3), warmup_steps=0)
    if does:
        get_optimizer_state_dict(loop.module, loop.optimizer)  # steps without gradients
        loop.optimizer.state.clear()  # as a load does
        step: Any = torch.compile(loop.optimizer.step, backend="eager")
        vars(loop.optimizer)["step"] = step
    with torch.no_grad():
        for parameter in loop.module.parameters():  # a model is loaded, before blocks start
            parameter.add_(1.0)
    loop.train(7)
    return loop.weights()


def test_a_state_may_be_read_before_training_and_the_step_compiled() -> None:
    (plain, _), (other, _) = fits_on_ranks(2, *(partial(read_and_compiled, on) for on in (0, 1)))
    torch.testing.assert_close(other, plain)


def weighted() -> Tensor:
    """Rank 1 has no samples in the block, so the model is that of rank 0."""
    loop = Loop(1, block_sync=lh.ModelAveraging(block_size=2, weighting="samples"), warmup_steps=0)
    for step in range(2):
        loss_of(loop, step).backward()
        loop.optimizer.step()
        own = loop.weights()
        loop.optimizer.zero_grad()
        loop.blocks.step(samples=6.0 if os.environ["RANK"] == "0" else 0.0)
    return torch.stack([own, loop.weights()])


def test_groups_count_by_the_samples_that_the_loop_passes() -> None:
    first, second = run_ranks(weighted, 2)
    torch.testing.assert_close(second[1], first[0])


def prepared() -> int:
    """Steps that are counted for an optimizer that another library has wrapped."""
    dist.init_process_group("gloo")
    module = network()
    wrapped: Any = SimpleNamespace(optimizer=adam(module))
    blocks = lh.attach(module, [wrapped], groups=lh.Groups(1), **SYNC)
    wrapped.optimizer.step()
    blocks.step(wrapped)
    return blocks.steps


def test_steps_of_a_wrapped_optimizer_are_counted() -> None:
    assert run_ranks(prepared, 2) == [1, 1]


def too_short() -> list[str]:
    loop = Loop(1, block_sync=lh.BMUF(block_size=2))
    loop.train(2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loop.blocks.finish()
    return [str(w.message) for w in caught if "warm-up" in str(w.message)]


def test_a_run_that_ends_in_its_warm_up_is_warned_of() -> None:
    (said,), other = run_ranks(too_short, 2)
    assert "ended after 2 steps, within its warm-up of 50: it never synchronised a block" in said
    assert not other


def one_rests() -> list[str]:
    """Eight steps of one optimizer, and none of the other."""
    dist.init_process_group("gloo")
    module = network()
    first, second = (adam(module[index]) for index in (0, 2))
    blocks = lh.attach(module, [first, second], groups=lh.Groups(1), **{**SYNC, "warmup_steps": 3})
    for step in range(8):
        inputs, targets = batch(step, dist.get_rank())
        (module(inputs) - targets).square().mean().backward()
        first.step()
        blocks.step(first)
        module.zero_grad()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        blocks.finish()
    return [str(w.message) for w in caught if "warm-up" in str(w.message)]


def test_an_optimizer_that_never_steps_keeps_the_run_in_its_warm_up() -> None:
    (said,), other = run_ranks(one_rests, 2)
    assert "ended after 0 steps of optimizer 1, within its warm-up of 3: it never" in said
    assert not other


def moments_of_joined() -> Tensor:
    """First moments behind a block in which an optimizer got parameters, flat."""
    some = {"make_optimizer": lambda module: torch.optim.Adam([*module.parameters()][:2])}
    loop = Loop(1, **some, block_sync=lh.BMUFAdam(block_size=3), warmup_steps=0)
    loop.train(1)
    loop.optimizer.add_param_group({"params": [*loop.module.parameters()][2:]})
    loop.train(2)
    states = [loop.optimizer.state[parameter] for parameter in loop.module.parameters()]
    return torch.cat([state["exp_avg"].reshape(-1) for state in states])


def test_moments_of_parameters_that_join_an_optimizer_are_averaged() -> None:
    first, second = run_ranks(moments_of_joined, 2)
    assert torch.equal(first, second) and first.count_nonzero() > 0
