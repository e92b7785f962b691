"""Block synchronisation: averages the models of the groups at the ends of blocks.

From the outside in: ``BlockSynchroniser`` counts steps, a ``ModelBlock`` holds the tensors of one
optimizer, a ``Fragment`` those that are synchronised at the same step, and a ``Bucket`` those of
one dtype, with their ``Shard``, ``Exchange`` and ``OuterStep``.
"""
