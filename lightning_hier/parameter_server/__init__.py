"""Parameter servers inside the ranks: transport, live-rank collectives, PSP-SGD, two-stage ASGD."""
