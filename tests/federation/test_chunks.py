"""Messages in pieces arrive whole, however they are cut, and whatever happens to the site in between."""

import pytest

from silvan.errors import FormatError, RefusedError
from silvan.federation import wire
from silvan.federation.chunks import (
    LEAST,
    MOST,
    Chunk,
    ChunkReply,
    ChunkServer,
    PieceSize,
    ping,
    send_in_chunks,
)
from silvan.federation.outgoing import UnreachedError


def answer(data, verb):
    return verb.encode() + data[::-1]


def ten():
    """Pieces of ten bytes, whatever the link."""
    size = PieceSize(10)
    size.carry = lambda carry, chunk: wire.decode(carry(wire.encode(chunk)), ChunkReply)
    return size


@pytest.mark.parametrize("n", [0, 1, 9, 10, 11, 20, 95])
@pytest.mark.parametrize("verb", ["ask", "total"])
def test_messages_arrive_whole(n, verb):
    desk = ChunkServer(answer)
    data = bytes(range(n))
    assert send_in_chunks(desk.take, data, verb, ten())[0] == answer(data, verb)


def test_a_site_restarted_between_pieces():
    """The message is then sent again, and no partial message is handled."""
    asked = []
    desks = [ChunkServer(lambda data, verb: asked.append(data) or b"no"), ChunkServer(answer)]
    carried = []

    def carry(data):
        carried.append(data)
        return desks[0 if len(carried) <= 2 else 1].take(data)

    with pytest.raises(UnreachedError, match="restarted"):
        send_in_chunks(carry, bytes(35), "ask", ten())
    assert not asked
    assert send_in_chunks(carry, bytes(35), "ask", ten())[0] == answer(bytes(35), "ask")


def test_a_reply_lost_between_pieces():
    desks = [ChunkServer(answer), ChunkServer(answer)]
    n = [0]

    def carry(data):
        n[0] += 1
        return desks[0 if n[0] <= 2 else 1].take(data)

    with pytest.raises(UnreachedError):
        send_in_chunks(carry, bytes(12), "ask", ten())


@pytest.mark.parametrize("lost", range(9))
@pytest.mark.parametrize("arrived", [False, True], ids=["on its way", "on its way back"])
def test_a_lost_chunk_is_sent_again(lost, arrived):
    """Loses each of nine chunks in turn, before or after the site had it; the message is handled once."""
    asked, n = [], [0]
    desk = ChunkServer(lambda data, verb: asked.append(data) or answer(data, verb))

    def carry(data):
        n[0] += 1
        reply = desk.take(data) if n[0] - 1 != lost or arrived else b""
        if n[0] - 1 == lost:
            raise UnreachedError("lost")
        return reply

    data = bytes(range(45))
    assert send_in_chunks(carry, data, "ask", ten(), give_up=lambda: False)[0] == answer(data, "ask")
    assert asked == [data]
    assert n[0] == 5 + 4 + 1 + (lost == 4 and not arrived), "no more than the chunk that was lost is sent again"


def test_pieces_of_two_messages_do_not_mix():
    desk = ChunkServer(answer)
    desk.take(wire.encode(Chunk("a", 0, 10, "ask", b"aaaa")))
    desk.take(wire.encode(Chunk("b", 0, 6, "ask", b"bbbb")))
    reply = wire.decode(desk.take(wire.encode(Chunk("a", 8, 10, "ask", b"aa"))), ChunkReply)
    assert reply.what == "lacking"


@pytest.mark.parametrize("speed", [1e3, 1.25e5, 2.5e6, 1e8], ids=["8 kbit/s", "1 Mbit/s", "20 Mbit/s", "0.8 Gbit/s"])
def test_pieces_are_as_large_as_the_link_carries_in_a_second(speed):
    """On links of any speed nothing is silent for long: heartbeats wait behind at most one piece."""
    clock, waits, desk = [0.0], [], ChunkServer(lambda data, verb: data)

    def carry(data):
        reply = desk.take(data)
        waits.append((len(data) + len(reply)) / speed)
        clock[0] += waits[-1]
        return reply

    data, size = bytes(40_000_000 if speed > 1e4 else 400_000), PieceSize(clock=lambda: clock[0])
    assert send_in_chunks(carry, data, "ask", size)[0] == data
    longest = max(waits[6:])  # the first pieces measure the speed
    assert longest < max(3.0, 2 * LEAST / speed)
    assert sum(waits) < 1.1 * (2 * len(data) / speed) + 1.0
    if speed > 1e7:
        assert len(waits) < 2 * len(data) / MOST + 12


def test_a_site_reports_that_it_is_still_working():
    """A request for its reply does not wait for ever, and no piece is sent twice."""
    import threading

    go_on, n = threading.Event(), [0]

    def work(data, verb):
        go_on.wait(10)
        return data

    desk = ChunkServer(work, patience=0.01)

    def carry(data):
        n[0] += 1
        if n[0] == 1:
            threading.Thread(target=desk.take, args=(data,)).start()
            raise UnreachedError("it has not answered yet")
        if n[0] == 4:
            go_on.set()
        return desk.take(data)

    assert send_in_chunks(carry, b"x", "ask", give_up=lambda: False)[0] == b"x"
    n[0] = 0
    go_on.clear()
    with pytest.raises(UnreachedError, match="not answered yet"):
        send_in_chunks(carry, b"y", "ask", give_up=lambda: n[0] >= 3)
    go_on.set()


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


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        wire.encode(Chunk("a", 5, 2)),
        wire.encode(Chunk("a", -1, 2)),
        wire.encode(Chunk("a", 0, 1 << 40)),
        wire.encode(Chunk("a", 0, 1, most=0)),
        wire.encode(Chunk("a", 0, most=1 << 40, fetch=True)),
    ],
)
def test_nonsense(data):
    with pytest.raises(FormatError):
        ChunkServer(answer).take(data)


def test_invalid_replies():
    with pytest.raises(FormatError):
        send_in_chunks(lambda data: b"?", b"x", "ask")
    with pytest.raises(FormatError, match="empty"):
        send_in_chunks(lambda data: wire.encode(ChunkReply("answer", 9)), b"x", "ask")
    with pytest.raises(FormatError, match="so many bytes"):
        send_in_chunks(lambda data: wire.encode(ChunkReply("answer", 1 << 40)), b"x", "ask")
