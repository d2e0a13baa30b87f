"""Makes ``tests`` a package that pytest imports from the repository's root, as ``tests.builders``."""

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def no_card_is_calibrated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What the person who runs the tests keeps of a card must not change what they find."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SWEEPER_CALIBRATIONS", str(tmp_path_factory.mktemp("calibrations")))
        yield
