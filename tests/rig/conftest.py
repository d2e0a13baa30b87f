"""Tests of the stand-in runtime itself."""

from tests.rig.fixtures import rig

__all__ = ["rig"]
