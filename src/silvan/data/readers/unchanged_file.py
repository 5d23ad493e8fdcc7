"""A file that is read several times and must not change meanwhile."""

from pathlib import Path

from silvan.errors import InputError


class UnchangedFile:
    """A file as it was when it was first read."""

    def __init__(self, path: Path) -> None:
        self.path, self.then = path, self._now(path)

    @staticmethod
    def _now(path: Path) -> tuple[int, ...]:
        found = path.stat()
        return found.st_ino, found.st_size, found.st_mtime_ns

    def check(self) -> None:
        """Raise ``InputError`` if the file is not what it was."""
        try:
            same = self._now(self.path) == self.then
        except OSError:
            same = False
        if not same:
            raise InputError(f"{str(self.path)!r} was changed or moved while in use; put it back, or start again")
