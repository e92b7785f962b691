"""PSP-SGD: servers that wait for some of the workers, and workers for some of the servers.

Read in this order: ``worker`` (pushes gradients and pulls shards), ``server`` (a served shard with
its rounds, and the handler of a rank's server loop). ``engine`` puts them together. ``shards``
divides the parameters, ``settings`` has the rules, and ``state`` copies the state of all servers.
"""
