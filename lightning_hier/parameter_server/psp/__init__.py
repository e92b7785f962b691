"""PSP-SGD: servers that wait for some of the workers, and workers for some of the servers.

Read in this order: ``worker`` (pushes gradients and pulls shards), ``server`` (a server of a shard
and its rounds), ``pushes`` (a round, and the end of waits). ``engine`` puts them together.
"""
