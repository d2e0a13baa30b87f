"""Tests on the stand-in runtime."""

from tests.rig.fixtures import rig
from tests.rig.trials import trials

__all__ = ["rig", "trials"]
