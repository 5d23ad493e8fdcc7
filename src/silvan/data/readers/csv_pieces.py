"""Cut CSV text into pieces at the ends of rows, so that each can be read separately."""

from collections.abc import Callable, Iterator


class RowPieces:
    """Receives text of any length and passes it on in pieces of whole rows.

    Line ends inside quotes do not end a row. Quotes inside quotes are doubled, so a row ends where the number of quotes
    so far is even.
    """

    def __init__(self, size: int, sink: Callable[[bytes], object]) -> None:
        self.size, self.sink = max(size, 1), sink
        self._parts: list[bytes] = []
        self._held = 0
        self._passed = False

    def write(self, text: bytes) -> int:
        """Receive some text."""
        self._parts.append(bytes(text))
        self._held += len(text)
        if self._held >= self.size:
            self._pass()
        return len(text)

    def close(self) -> None:
        """Pass on the rest, or an empty piece if nothing has been passed on."""
        if self._held or not self._passed:
            self.sink(b"".join(self._parts))
        self._parts, self._held = [], 0

    def _pass(self) -> None:
        text = b"".join(self._parts)
        end = last_end(text)
        self._parts = [text[end:]]
        self._held = len(text) - end
        if end:
            self._passed = True
            self.sink(text[:end])
        else:
            self.size = max(self.size, 2 * len(text))  # a row longer than a piece


def last_end(text: bytes) -> int:
    """Return the end of the last whole row; 0 if there is none."""
    end = len(text)
    quotes = text.count(b'"')
    while True:
        before = text.rfind(b"\n", 0, end) + 1
        if not before:
            return 0
        quotes -= text.count(b'"', before, end)
        if quotes % 2 == 0:
            return before
        end = before - 1


def first_end(text: bytes) -> int:
    """Return the end of the first row."""
    end = text.find(b"\n") + 1
    while end and text.count(b'"', 0, end) % 2:
        end = text.find(b"\n", end) + 1
    return end or len(text)


def pieces(read: Callable[[int], bytes], size: int) -> Iterator[bytes]:
    """Yield the text in pieces of whole rows, each of about ``size`` bytes."""
    ready: list[bytes] = []
    rows = RowPieces(size, ready.append)
    while block := read(min(max(size, 1), 1 << 20)):
        rows.write(block)
        yield from ready
        ready.clear()
    rows.close()
    yield from (piece for piece in ready if piece)
