"""What only the connection on an event loop has. The rest is tested with consumers and producers."""

import asyncio
import socket
import threading

import pytest

from nsq_compat.client.aio import connection as connections
from nsq_compat.client.aio.connection import Connection, connect
from nsq_compat.client.link import Observer
from nsq_compat.client.message import Message
from nsq_compat.client.settings import ConnectionSettings
from nsq_compat.protocol.compression import Deflate
from nsq_compat.protocol.frames import OK, response_frame
from nsq_compat.protocol.message import make_frames


class _Transport(asyncio.Transport):
    reads = True

    def write(self, data: object) -> None: ...
    def abort(self) -> None: ...

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True


class _Seen(Observer[Connection]):
    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    def received(self, connection: Connection, messages: list[Message]) -> None:
        self.bodies += [message.body for message in messages]


async def test_bytes_that_become_many_messages_take_turns_with_other_tasks(monkeypatch):
    monkeypatch.setattr(connections, "TURN_SECONDS", 0)
    observer = _Seen()
    connection = Connection("127.0.0.1:1", ConnectionSettings(deflate=True), observer)
    transport, nsqd = _Transport(), Deflate(6)
    connection.connection_made(transport)
    connection.data_received(response_frame(b'{"deflate": true}'))
    await asyncio.sleep(0)
    connection.data_received(nsqd.encode(OK))
    await asyncio.sleep(0)
    ids, bodies = [b"%016x" % number for number in range(200)], [bytes([number]) * 100_000 for number in range(200)]
    connection.data_received(nsqd.encode(b"".join(make_frames(ids, 1_000, bodies))))
    assert 0 < len(observer.bodies) < len(bodies)
    while not transport.reads:
        await asyncio.sleep(0)
    assert observer.bodies == bodies
    connection.abort()
    connection.connection_lost(None)


async def test_names_without_an_answer_hold_up_no_other_work(monkeypatch):
    end, system = threading.Event(), socket.getaddrinfo

    def getaddrinfo(host, port, family=0, type=0, proto=0, flags=0):
        is_name = not flags & socket.AI_NUMERICHOST
        if is_name and host.startswith("silent"):
            end.wait(30)
        return system("127.0.0.1" if is_name else host, port, family, type, proto, flags)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        waiting = [asyncio.create_task(connect(f"silent{number}", port)) for number in range(100)]
        try:
            await asyncio.sleep(0)
            async with asyncio.timeout(20):
                assert await asyncio.to_thread(lambda: "done") == "done"
                (await connect("good", port)).close()
        finally:
            end.set()
            for each in waiting:
                each.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


async def test_a_name_that_does_not_exist_is_an_error():
    with pytest.raises(socket.gaierror):
        await connect("no such name", 1)


async def test_without_a_thread_for_a_name_its_node_is_not_reached(monkeypatch):
    def start(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(OSError, match="localhost: can't start new thread"):
        await connect("localhost", 1)
