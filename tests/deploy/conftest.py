"""What the tests of machines share."""

import logging

import pytest


@pytest.fixture(autouse=True)
def _own_logger():
    """Leave the logger as it was: a site's job sends its lines elsewhere."""
    logger = logging.getLogger("silvan")
    before, propagate = list(logger.handlers), logger.propagate
    yield
    for handler in logger.handlers:
        if handler not in before:
            handler.close()
    logger.handlers[:], logger.propagate = before, propagate
