"""Virtual workers: several workers on one rank, one after the other in every step.

With ``virtual_workers=V``, each of R ranks computes V of the R V workers of a run.
``WorkerLayout`` (``comm/tiers.py``) assigns them: a rank has max(1, V / G) models for groups of
G workers, and each model is shared by min(V, G) of its workers.

- *Models* are swapped into the module by reference (``comm/blocks/local_models.py``): the same
  ``Parameter`` objects, buffers and tensors of optimizer state refer to other memory, and
  nothing is copied. Changes that a step makes to the optimizer's groups belong to its model;
  changes between steps, such as those of schedulers, apply to all.
- *Random states* are swapped with the worker, also while its batch is loaded and moved to the
  device.
- *Steps*: Lightning's optimization of a batch runs once for each model and counts once
  (``worker_steps.py``). Steps, epochs, schedules, validation, logging and saving are those of a
  run with a rank for each worker. A batch consists of one batch of each worker
  (``loaders.py``), whose sampler uses the worker's number (``division.py``).
- *Workers that share a model* share its step: the optimizer's closure computes the gradients of
  each of them, and then the reducers of DDP's hook average them
  (``comm/gradients/worker_gradients.py``).
- *At the end of a block*, the models of a rank are summed in its buffer, and the sum is exchanged
  as one model. W and Delta are kept once.
- *Checkpoints* contain the state of each worker, so a run resumes exactly on any number of ranks
  with the same number of workers.

Not supported, each with one error before training: fp16 loss scaling, manual optimization,
``weighting="samples"``, ``training_step(dataloader_iter)``, several loaders, a sampler with a
constructor of its own unless ``train_dataloader`` creates the loader; with several models on a
rank, averages of weights and unfreezing; with several workers on a model, hooks,
``sync_batchnorm`` and ``broadcast_buffers=False``.
"""
