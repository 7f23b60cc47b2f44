"""The version of the package, which goes with the wheel, the metrics and the snapshots."""

__version__ = "1.0.0rc1"
