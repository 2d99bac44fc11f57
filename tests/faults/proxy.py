"""A proxy in front of nsqd, on the event loop of the test, that cuts connections."""

import asyncio
from contextlib import suppress
from random import Random


class Proxy:
    """Forwards connections to nsqd, and cuts them."""

    def __init__(self, target: str) -> None:
        self._host, _, self._port = target.rpartition(":")
        self._writers: set[asyncio.StreamWriter] = set()
        self._serving: set[asyncio.Task[None]] = set()
        self.cuts = 0

    async def start(self) -> str:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def close(self) -> None:
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        if self._serving:
            await asyncio.wait(self._serving)
        await self._server.wait_closed()

    def cut(self, random: Random) -> None:
        """Cut a connection, in the middle of what it carries."""
        if self._writers:
            self.cuts += 1
            random.choice(list(self._writers)).transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)
        try:
            far_reader, far_writer = await asyncio.open_connection(self._host, int(self._port))
        except OSError:
            writer.transport.abort()
            return
        both = {writer, far_writer}
        self._writers |= both
        try:
            async with asyncio.TaskGroup() as directions:
                directions.create_task(_forward(reader, far_writer))
                directions.create_task(_forward(far_reader, writer))
        finally:
            self._writers -= both
            for each in both:
                each.transport.abort()


async def _forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(1000):
            writer.write(data)
            await writer.drain()
        writer.write_eof()
