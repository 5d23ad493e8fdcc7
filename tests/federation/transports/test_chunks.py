"""Messages in pieces: whole at the other end, however they are cut, and whatever becomes of the site in between."""

import pytest

from silvan.errors import FormatError, RefusedError
from silvan.federation import wire
from silvan.federation.question import UnreachedError
from silvan.federation.transports.chunks import Chunk, ChunkReply, ChunkServer, pieces, ping, send_in_chunks


def answer(data, verb):
    return verb.encode() + data[::-1]


@pytest.mark.parametrize("n", [0, 1, 9, 10, 11, 20, 95])
@pytest.mark.parametrize("verb", ["ask", "total"])
def test_whole_at_the_other_end(n, verb):
    desk = ChunkServer(answer, size=10)
    data = bytes(range(n))
    assert send_in_chunks(desk.take, data, verb, 10)[0] == answer(data, verb)


def test_pieces():
    assert pieces(b"abcde", 2) == [b"ab", b"cd", b"e"]
    assert pieces(b"", 2) == [b""]


def test_a_site_that_is_restarted_between_pieces():
    """The message is then sent again, and nothing half is answered."""
    asked = []
    desks = [ChunkServer(lambda data, verb: asked.append(data) or b"no", size=10), ChunkServer(answer, size=10)]
    carried = []

    def carry(data):
        carried.append(data)
        return desks[0 if len(carried) <= 2 else 1].take(data)

    with pytest.raises(UnreachedError, match="restarted"):
        send_in_chunks(carry, bytes(35), "ask", 10)
    assert not asked
    assert send_in_chunks(carry, bytes(35), "ask", 10)[0] == answer(bytes(35), "ask")


def test_an_answer_that_is_lost_between_pieces():
    desks = [ChunkServer(answer, size=10), ChunkServer(answer, size=10)]
    n = [0]

    def carry(data):
        n[0] += 1
        return desks[0 if n[0] <= 2 else 1].take(data)

    with pytest.raises(UnreachedError):
        send_in_chunks(carry, bytes(12), "ask", 10)


def test_pieces_of_two_messages_do_not_mix():
    desk = ChunkServer(answer, size=4)
    desk.take(wire.encode(Chunk("a", 0, 3, "ask", b"aaaa")))
    desk.take(wire.encode(Chunk("b", 0, 2, "ask", b"bbbb")))
    reply = wire.decode(desk.take(wire.encode(Chunk("a", 2, 3, "ask", b"aa"))), ChunkReply)
    assert reply.what == "lacking"


def test_waiting_and_refusing():
    with pytest.raises(UnreachedError, match="not yet"):
        send_in_chunks(ChunkServer(answer, lambda: ChunkReply("waiting", text="not yet")).take, b"x", "ask")
    with pytest.raises(RefusedError, match="never"):
        send_in_chunks(ChunkServer(answer, lambda: ChunkReply("refused", text="never\x1b[0m")).take, b"x", "ask")


def test_a_ping_does_not_wait_for_work():
    import threading

    busy, go_on = threading.Event(), threading.Event()

    def work(data, verb):
        busy.set()
        go_on.wait(10)
        return b"done"

    desk = ChunkServer(work)
    thread = threading.Thread(target=lambda: send_in_chunks(desk.take, b"x", "ask"))
    thread.start()
    assert busy.wait(10)
    ping(desk.take)
    go_on.set()
    thread.join()


@pytest.mark.parametrize("data", [b"", b"\xff", wire.encode(Chunk("a", 5, 2)), wire.encode(Chunk("a", 0, 1 << 40))])
def test_nonsense(data):
    with pytest.raises(FormatError):
        ChunkServer(answer).take(data)


def test_answers_that_are_none():
    with pytest.raises(FormatError):
        send_in_chunks(lambda data: b"?", b"x", "ask")
    with pytest.raises(FormatError, match="so many pieces"):
        send_in_chunks(lambda data: wire.encode(ChunkReply("answer", 1 << 40, b"")), b"x", "ask")
