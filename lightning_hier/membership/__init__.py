"""Groups that come and go: each is a job of its own, and they synchronise at the ends of blocks.

torchft's Lighthouse and Manager provide quorums and heartbeats. The modules here decide what a
quorum means for a block: whose models are averaged, whether a synchronisation counts, and who
copies the state of its run to a group that comes back.
"""
