"""nsqadmin as a process beside a real nsqd."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.request import urlopen

import pytest

from nsq_conformance.nsqadmin_process import NsqadminProcess, installed_nsqadmin
from nsq_conformance.nsqd_process import NsqdProcess, installed_nsqd
from tests.nsqadmin.browser import Browser

PATIENCE = 30.0

StartNsqadmin = Callable[..., NsqadminProcess]


@pytest.fixture
def nsqd(tmp_path: Path) -> Iterator[NsqdProcess]:
    (tmp_path / "data").mkdir()
    with NsqdProcess(installed_nsqd(), tmp_path / "data", options=["--broadcast-address=127.0.0.1"]) as process:
        yield process


@pytest.fixture
def start() -> Iterator[StartNsqadmin]:
    """Starts nsqadmin with these flags, and stops it after the test."""
    with ExitStack() as stack:

        def start_nsqadmin(*arguments: str) -> NsqadminProcess:
            return stack.enter_context(NsqadminProcess(installed_nsqadmin(), options=arguments))

        yield start_nsqadmin


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


def publish(nsqd: NsqdProcess, topic: str, *bodies: str) -> None:
    for body in bodies:
        urlopen(f"http://{nsqd.http_address}/pub?topic={topic}", body.encode(), timeout=PATIENCE).close()
