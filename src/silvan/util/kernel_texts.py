"""The key of compiled kernels: a hash of the files that contain kernels and their constants."""

import hashlib
from pathlib import Path

PACKAGE = Path(__file__).parent.parent

_WITH_CONSTANTS = ("data", "bins", "tree", "forest")  # folders of files whose constants kernels use


def digest_of_kernels() -> str:
    """Return a hash of this package's files that contain kernels, or constants that kernels use."""
    digest = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_bytes()
        if b"njit" in text or path.parent.name in _WITH_CONSTANTS:
            digest.update(str(path.relative_to(PACKAGE)).encode() + b"\0" + text)
    return digest.hexdigest()[:16]
