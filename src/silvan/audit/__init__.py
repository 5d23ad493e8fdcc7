"""Attacks that a release must survive: each an attacker with stated knowledge, and a figure for what it gains.

``silvan.audit(model, federation)`` runs them: the module can be called, since the public function has its name.
"""

import sys
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    """A module that is also the function of its name."""

    def __call__(self, *args: Any, **settings: Any) -> Any:
        from silvan.audit.audit import audit

        return audit(*args, **settings)


sys.modules[__name__].__class__ = _Callable
