"""`python -m lightning_hier` is the command `lightning-hier`."""

from lightning_hier.cli.main import main

if __name__ == "__main__":
    main()
