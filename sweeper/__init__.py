"""The largest batch that fits: found, proven, recorded, drawn."""

__version__ = "0.1.0"
