"""The ``rig`` fixture, for any ``conftest.py`` to import."""

import os
import sys

import pytest

from tests.rig.build import Rig, RigUnavailable, build, torch_of

__all__ = ["rig"]


@pytest.fixture(scope="session")
def rig(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Rig:
    """The stand-in runtime for this interpreter's torch, compiled once and kept in pytest's cache.

    Skips with the reason where it cannot be built; where CI=true and torch is a build that it knows, fails instead.
    """
    cache = getattr(pytestconfig, "cache", None)  # absent when its plugin is off
    folder = cache.mkdir("rig") if cache is not None else tmp_path_factory.mktemp("rig")
    try:
        return build(sys.executable, folder)
    except RigUnavailable as unavailable:
        if must_run():
            pytest.fail(f"the stand-in CUDA runtime must run in CI: {unavailable}", pytrace=False)
        pytest.skip(f"no stand-in CUDA runtime: {unavailable}")


def must_run() -> bool:
    """Whether a missing rig is a failure: in CI, with a torch that it could be built for."""
    if os.environ.get("CI", "").lower() != "true":
        return False
    try:
        torch_of(sys.executable)
    except RigUnavailable:
        return False
    return True
