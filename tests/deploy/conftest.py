"""Shared by the tests of machines."""

import logging

import pytest


@pytest.fixture(autouse=True)
def _own_logger():
    """Restores the logger, because a site's job redirects its lines."""
    logger = logging.getLogger("silvan")
    before, propagate = list(logger.handlers), logger.propagate
    yield
    for handler in logger.handlers:
        if handler not in before:
            handler.close()
    logger.handlers[:], logger.propagate = before, propagate
