"""One nsqd for each module, with limits a test can reach; connections that are closed when the test is over."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from conformance.nsqd_process import NsqdProcess
from conformance.raw_client import RawClient

MSG_TIMEOUT_MS = 60_000
MAX_MSG_TIMEOUT_MS = 120_000
OPTIONS = (
    "--max-msg-size=2000",
    "--max-body-size=6000",
    "--max-rdy-count=50",
    "--max-req-timeout=30s",
    f"--msg-timeout={MSG_TIMEOUT_MS}ms",
    f"--max-msg-timeout={MAX_MSG_TIMEOUT_MS}ms",
    "--max-heartbeat-interval=2m",
    "--max-channel-consumers=2",
    # What is waited for comes as soon as it may; all channels are looked at each time.
    "--output-buffer-timeout=25ms",
    "--queue-scan-selection-count=1000",
)

Connect = Callable[..., RawClient]


@pytest.fixture(scope="module")
def nsqd(nsqd_command: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NsqdProcess]:
    with NsqdProcess(nsqd_command, tmp_path_factory.mktemp("nsqd"), options=OPTIONS) as process:
        yield process


@pytest.fixture
def connect(nsqd: NsqdProcess) -> Iterator[Connect]:
    with ExitStack() as connections:
        yield lambda: connections.enter_context(RawClient(nsqd.tcp_address))


@pytest.fixture
def client(connect: Connect) -> RawClient:
    """A connection; in tests of two it is the one that publishes."""
    return connect()


@pytest.fixture
def consumer(connect: Connect) -> RawClient:
    """A second connection."""
    return connect()


@pytest.fixture(scope="module")
def awake_topics(nsqd: NsqdProcess) -> list[str]:
    """Topics whose channel ``ch`` nsqd looks at: Go's does so up to five seconds after it is made. The wait is one for
    all of a module.
    """
    topics = [f"awake.{number}" for number in range(30)]
    for topic in (*topics, "awake.last"):
        nsqd.create_channel(topic, "ch")
    with RawClient(nsqd.tcp_address) as client:
        client.subscribes("awake.last").is_ready(1).defers("awake.last", 1, b"is it?")
        assert client.message().body == b"is it?"
    return topics


@pytest.fixture
def awake(awake_topics: list[str]) -> str:
    """One of them, for this test alone."""
    return awake_topics.pop()
