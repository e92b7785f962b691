"""One module for each package: `task()` builds a small model of the package and its data.

None imports lightning_hier, so that checkpoints are also loaded where it has not been imported.
"""
