"""Two-stage ASGD: asynchronous SGD in shared memory inside a node, with a master across nodes.

Read in this order: ``device`` (a rank updates its node's replica and sums its gradients), ``node``
(a thread pushes the sums to the master and pulls its model), ``master`` (rank 0 applies the pushes,
in order, to its model). ``engine`` puts them together. ``replica`` and ``shared_memory`` contain
the memory that the ranks of a node share.
"""
