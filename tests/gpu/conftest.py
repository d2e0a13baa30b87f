"""These tests need a GPU that torch can use; elsewhere they are skipped, and tests/rig stands in."""

from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    import torch

    if torch.cuda.is_available():
        return
    for item in items:
        if HERE in Path(item.path).parents:
            item.add_marker(pytest.mark.skip(reason="no GPU; tests/rig runs the same device on a stand-in"))
