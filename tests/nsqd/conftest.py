"""What nsqd talks to: clients, and nsqlookupds, ours, on free ports of the test's own process."""

import json
import time
from collections.abc import Callable, Iterator
from typing import Any, Self

import gevent
import pytest
import requests
from sseclient import SSEClient

from nsq_compat.nsqlookupd.main import Daemon, NsqlookupdOptions
from nsq_conformance.nsqd_process import NsqdProcess
from tests.v2_client import Client

PATIENCE = 30.0
"""Seconds after which a test gives up on something that should come soon."""


def tcp_address(nsqd: NsqdProcess) -> tuple[str, int]:
    host, _, port = nsqd.tcp_address.rpartition(":")
    return host, int(port)


def connect(nsqd: NsqdProcess, **fields: object) -> Client:
    return Client(tcp_address(nsqd), **fields)  # type: ignore[arg-type]


class Events:
    """A client of a stream of Server-Sent Events; sseclient parses it. `verify` is an authority, for HTTPS."""

    def __init__(self, nsqd: NsqdProcess, query: str, *, verify: str = "", **headers: str) -> None:
        base = f"https://{nsqd.https_address}" if verify else f"http://{nsqd.http_address}"
        self._response = requests.get(
            f"{base}/channel/consume?{query}",
            headers={"Accept": "text/event-stream", **headers},
            stream=True,
            timeout=PATIENCE,
            verify=verify or True,
        )
        assert self._response.status_code == 200, self._response.text
        self._events = SSEClient(self._response.iter_content(None)).events()

    def take(self, count: int) -> list[dict[str, Any]]:
        """The next messages."""
        return [_message(next(self._events)) for _ in range(count)]

    def rest(self) -> list[dict[str, Any]]:
        """The messages until the stream ends. Raises if it breaks."""
        with self:
            return [_message(event) for event in self._events]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._response.close()


def _message(event: Any) -> dict[str, Any]:
    message: dict[str, Any] = json.loads(event.data)
    assert (event.event, event.id) == ("message", message["id"])
    return message


class Nsqlookupd(Daemon):
    """On a free port, or again on that of another."""

    def __init__(self, tcp_address: str = "127.0.0.1:0", **options: str) -> None:
        options = {"http_address": "127.0.0.1:0", "broadcast_address": "127.0.0.1", **options}
        super().__init__(NsqlookupdOptions(tcp_address=tcp_address, **options))  # type: ignore[arg-type]
        self.address = f"127.0.0.1:{self.info.tcp_port}"
        self.start()

    @property
    def registered(self) -> set[tuple[str, str]]:
        """The registered topics (with ""), and topics with channels."""
        return {(each.topic, each.channel) for each in self.db.registrations() if each.producers}


StartNsqlookupd = Callable[..., Nsqlookupd]


@pytest.fixture
def start() -> Iterator[StartNsqlookupd]:
    """Start an nsqlookupd."""
    running: list[Nsqlookupd] = []

    def start_one(*args: str, **options: str) -> Nsqlookupd:
        running.append(Nsqlookupd(*args, **options))
        return running[-1]

    yield start_one
    for each in running:
        each.stop()


@pytest.fixture
def wait_until() -> Callable[[Callable[[], object]], None]:
    def wait(condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline, "it did not happen in time"
            gevent.sleep(0.005)

    return wait
