"""Two-stage ASGD: lock-free updates of a replica in every node, and a master for the nodes."""
