"""What tells one state of all kernels from another: the text of the files that kernels and their constants are in."""

import hashlib
from pathlib import Path

PACKAGE = Path(__file__).parent.parent

_WITH_CONSTANTS = ("data", "bins", "tree", "forest")  # folders of files whose constants kernels use


def digest_of_kernels() -> str:
    """Return a hash of the files of this package that have kernels in them, or constants that kernels use."""
    digest = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_bytes()
        if b"njit" in text or path.parent.name in _WITH_CONSTANTS:
            digest.update(str(path.relative_to(PACKAGE)).encode() + b"\0" + text)
    return digest.hexdigest()[:16]
