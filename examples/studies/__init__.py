"""The papers' tables in small, on real data: one command each, which goes on where it stopped."""
