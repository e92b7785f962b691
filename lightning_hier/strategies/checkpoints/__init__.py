"""Checkpoints: files that are complete or absent, the state of every rank, and exact resume.

``name.ckpt`` is Lightning's file, written by rank 0: the global model, the optimizers of rank
0, and under the key ``lightning_hier`` step counts and the name of the save. The directory
``name.ckpt.ranks/<save>`` has a file for each rank with the state of the engine, which is that of
the plain loop (``loop/engine_state.py``), and of the Trainer (``run_state.py``): its shard of W,
Delta and moments, residuals, buffers, random states, loss scale. That of the first rank of a group
also has the local model and the optimizers of the group. The files of the ranks are written first,
then all ranks agree that they exist, then rank 0 writes the file that names them: a checkpoint that
can be read is complete.

The files of the ranks are not written by ``torch.distributed.checkpoint``: it exchanges pickled
plans between ranks and reads its metadata with pickle. ``name.ckpt`` of a divided module is a
folder in its format (``sharded_folder.py``), because Lightning's strategy reads that.

*Exact resume* restores the local model of the group, the state of blocks, residuals and counts,
and

- data and random states (``data_position.py``): Lightning restarts the data of an epoch, so every
  rank restarts them with the random state of that time and skips the used batches;
- the buckets of DDP (``comm/gradients/reached.py``): a sum over three ranks or more is
  rounded by the position of an element in its bucket, and DDP orders buckets by the first
  backward pass.

*On other ranks or settings* (``run_state.py``) the current block ends at W of the checkpoint; eta
follows the new number of groups; the vectors of outer steps are joined by the names of parameters
(``loop/outer_state.py``); rank k of N' gets ``N'/N`` times the residuals of ranks k, k + N', and so
on, so the mean gradient that is still to be sent is the same.
"""
