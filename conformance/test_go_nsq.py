"""The official Go client against nsqd, and together with pynsq."""

from pathlib import Path

import pytest

from nsq_conformance.clients import Client
from nsq_conformance.delivery import Delivery, LinesFile, assert_each_line_once
from nsq_conformance.nsqd_process import NsqdProcess


class TestGoNsq(Delivery):
    @pytest.fixture
    def client(self, gonsq: Client) -> Client:
        return gonsq


@pytest.mark.parametrize(("publisher", "consumer"), [("gonsq", "pynsq"), ("pynsq", "gonsq")])
def test_one_client_reads_what_the_other_publishes(
    publisher: str,
    consumer: str,
    request: pytest.FixtureRequest,
    nsqd: NsqdProcess,
    topic: str,
    lines_file: LinesFile,
    tmp_path: Path,
) -> None:
    clients: dict[str, Client] = {name: request.getfixturevalue(name) for name in ("gonsq", "pynsq")}
    file, out = lines_file(2000), tmp_path / "out"
    running = clients[consumer].consuming(nsqd.tcp_address, topic, "ch", 2000, out)
    clients[publisher].publishing(nsqd.tcp_address, topic, file, command="mpub").report()
    running.report()
    assert_each_line_once(file, out)
