"""gnsq, the Python client on gevent, against nsqd."""

from collections.abc import Iterator

import pytest

from nsq_conformance.clients import Client
from nsq_conformance.delivery import Delivery
from nsq_conformance.nsqd_process import NsqdProcess


@pytest.fixture(scope="module")
def impatient_nsqd(nsqd_command: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NsqdProcess]:
    options = ["--msg-timeout=1500ms"]
    with NsqdProcess(nsqd_command, tmp_path_factory.mktemp("nsqd"), options=options) as process:
        yield process


class TestGnsq(Delivery):
    refusal_of_a_name = "invalid topic name"  # raised by gnsq itself

    @pytest.fixture
    def client(self, gnsq: Client) -> Client:
        return gnsq

    @pytest.fixture
    def impatient(self, impatient_nsqd: NsqdProcess) -> NsqdProcess:
        """gnsq cannot set a message timeout."""
        return impatient_nsqd
