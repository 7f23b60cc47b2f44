"""The version of the package, which goes with the wheel, the metrics and the snapshots."""

__version__ = "0.1.0"
