"""A client and daemons that it queries."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from nsq_compat.cluster.http_client import HttpClient
from tests.cluster.daemon import Daemon


@pytest.fixture
def make_daemon() -> Iterator[Callable[[], Daemon]]:
    with ExitStack() as stack:
        yield lambda: stack.enter_context(Daemon())


@pytest.fixture
def daemon(make_daemon: Callable[[], Daemon]) -> Daemon:
    return make_daemon()


@pytest.fixture
def client() -> HttpClient:
    return HttpClient(request_timeout=20)


@pytest.fixture
def no_listener() -> str:
    """An address without a listener."""
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        return f"127.0.0.1:{server.server_address[1]}"
