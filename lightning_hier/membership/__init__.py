"""Groups that come and go: each is a job of its own, and they synchronise at the ends of blocks.

Quorums and heartbeats are those of torchft's Lighthouse and Manager. The modules here decide what a
quorum means for a block: whose models are averaged, whether a synchronisation counts, and who
copies the state of its run to a group that comes back.
"""
