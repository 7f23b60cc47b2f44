"""The version of the package, which the wheel, the metrics and the snapshots contain."""

__version__ = "1.0.0rc1"
