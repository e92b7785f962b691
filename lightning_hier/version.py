"""The version of the package, in the one place that the build and the user read."""

__version__ = "0.2.0"
