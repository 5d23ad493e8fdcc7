"""A slow link on loopback: a proxy with limited bandwidth and a fixed delay.

Both directions of all connections share only the link: each direction has its own bandwidth. And a link without limits
that cuts connections on which nothing was sent for some time, as proxies and firewalls do.
"""

import asyncio
import contextlib
import threading
import time


class SlowLink:
    """Forwards connections to ``127.0.0.1:port`` at a given rate in bytes per second, ``delay`` seconds late."""

    def __init__(self, port, speed, delay):
        self._to, self._speed, self._delay = port, speed, delay
        self._free = [0.0, 0.0]  # when each direction has sent what it was given
        self.bytes = [0, 0]
        self.port = 0

    def __enter__(self):
        self._loop, ready = asyncio.new_event_loop(), threading.Event()
        self._thread = threading.Thread(target=self._run, args=(ready,), daemon=True)
        self._thread.start()
        assert ready.wait(10)
        return self

    def __exit__(self, *raised):
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _end(self):
        """Closes all connections."""
        self._server.close()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _run(self, ready):
        asyncio.set_event_loop(self._loop)
        self._server = self._loop.run_until_complete(asyncio.start_server(self._connect, "127.0.0.1", 0))
        self.port = self._server.sockets[0].getsockname()[1]
        ready.set()
        self._loop.run_forever()

    async def _connect(self, reader, writer):
        try:
            to_reader, to_writer = await asyncio.open_connection("127.0.0.1", self._to)
        except OSError:
            writer.close()
            return
        try:
            await asyncio.gather(self._forward(reader, to_writer, 0), self._forward(to_reader, writer, 1))
        finally:
            to_writer.close()
            writer.close()

    async def _forward(self, reader, writer, way):
        """Forwards one direction of a connection; the link buffers its delay plus half a second."""
        queue = asyncio.Queue()

        async def send():
            while (item := await queue.get()) is not None:
                due, data = item
                await asyncio.sleep(max(due - time.monotonic(), 0.0))
                writer.write(data)
                await writer.drain()
            writer.close()

        sending = asyncio.create_task(send())
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(4096):
                now = time.monotonic()
                self._free[way] = max(self._free[way], now) + len(data) / self._speed
                self.bytes[way] += len(data)
                queue.put_nowait((self._free[way] + self._delay, data))
                await asyncio.sleep(max(self._free[way] - now - 0.5, 0.0))
        queue.put_nowait(None)
        with contextlib.suppress(ConnectionError):
            await sending


class IdleLink(SlowLink):
    """Forwards connections to ``127.0.0.1:port``, and cuts one on which nothing was sent for ``idle`` seconds."""

    def __init__(self, port, idle):
        super().__init__(port, float("inf"), 0.0)
        self._idle = idle
        self.cut = 0
        self.longest = 0.0  # seconds that a connection was idle

    async def _connect(self, reader, writer):
        try:
            to_reader, to_writer = await asyncio.open_connection("127.0.0.1", self._to)
        except OSError:
            writer.close()
            return
        last = [time.monotonic()]

        async def forward(source, target):
            with contextlib.suppress(ConnectionError):
                while data := await source.read(1 << 16):
                    self.longest, last[0] = max(self.longest, time.monotonic() - last[0]), time.monotonic()
                    target.write(data)
                    await target.drain()

        async def cut_when_idle():
            while (left := last[0] + self._idle - time.monotonic()) > 0:
                await asyncio.sleep(left)
            self.cut += 1

        ways = [forward(reader, to_writer), forward(to_reader, writer), cut_when_idle()]
        tasks = [asyncio.ensure_future(way) for way in ways]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            to_writer.close()
            writer.close()
