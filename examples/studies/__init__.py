"""Small reproductions of the papers' tables, one command each. Interrupted studies resume."""
