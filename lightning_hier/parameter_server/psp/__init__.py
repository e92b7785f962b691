"""PSP-SGD: servers that wait for some of the workers, and workers for some of the servers.

Read in this order: ``worker`` (pushes gradients and pulls shards), ``server`` (the handler of a
rank's server loop), ``served_shard`` (one shard: rounds, answers, rendezvous). ``engine`` puts them
together. ``shards`` divides the parameters, ``settings`` has the rules, and ``state`` copies the
state of all servers.
"""
