"""The whole method in plain PyTorch: N workers in one process, in the order of the equations.

Read ``workers`` (a step of a group), ``blocks`` (models across groups), ``adam`` (their moments),
and ``servers`` (PSP-SGD, two-stage ASGD). BMUF with GTC for four groups of two workers::

    models = [deepcopy(model) for _ in range(8)]
    workers = [Worker(own, [torch.optim.SGD(own.parameters(), lr=0.1)]) for own in models]
    bmuf = partial(BlockMomentum, eta=0.75)
    training = Training(workers, Method(group=2, threshold=0.01, tau=10, outer=bmuf))
    for batches in data:                                      # a batch for each worker
        for worker, (x, y) in zip(workers, batches):
            torch.nn.functional.mse_loss(worker.model(x), y).backward()
        training.step()
    W = training.global_model()
"""

from lightning_hier.reference.blocks import BlockMomentum, DiLoCo, Training
from lightning_hier.reference.servers import Node, Server
from lightning_hier.reference.workers import Method, Worker

__all__ = ["BlockMomentum", "DiLoCo", "Method", "Node", "Server", "Training", "Worker"]
