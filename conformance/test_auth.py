"""Clients that must authenticate, and an auth server that decides on their permissions.

``test_negotiation`` tests the auth server's requests for clients with TLS.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from nsq_conformance.auth_server import EVERYTHING, AuthServer
from nsq_conformance.clients import Client, ClientFailed
from nsq_conformance.delivery import LinesFile, assert_each_line_once
from nsq_conformance.nsqd_process import NsqdProcess

LINES = 2000
SECRET = "both & more"
READER = "reader"


@pytest.fixture(scope="module")
def auth_server() -> Iterator[AuthServer]:
    reading = {"topic": ".*", "channels": [".*"], "permissions": ["subscribe"]}
    # So short that the auth server is queried again during a test.
    with AuthServer({SECRET: EVERYTHING, READER: [reading]}, ttl=1) as server:
        yield server


@pytest.fixture(scope="module", params=["get", "post"])
def nsqd(
    request: pytest.FixtureRequest,
    nsqd_command: str,
    auth_server: AuthServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[NsqdProcess]:
    options = [f"--auth-http-address={auth_server.address}", f"--auth-http-request-method={request.param}"]
    with NsqdProcess(nsqd_command, tmp_path_factory.mktemp("nsqd"), options=options) as process:
        yield process


@pytest.fixture(params=["pynsq", "gonsq", "gnsq", "nsqjs"])
def client(request: pytest.FixtureRequest) -> Client:
    client: Client = request.getfixturevalue(request.param)
    return client


def test_every_line_arrives_once(
    client: Client,
    nsqd: NsqdProcess,
    auth_server: AuthServer,
    topic: str,
    lines_file: LinesFile,
    tmp_path: Path,
) -> None:
    file, out = lines_file(LINES), tmp_path / "out"
    auth_server.questions.clear()
    consumer = client.consuming(nsqd.tcp_address, topic, "ch", LINES, out, auth_secret=SECRET)
    publisher = client.publishing(nsqd.tcp_address, topic, file, command="mpub", batch=50, auth_secret=SECRET)
    assert publisher.report()["published"] == LINES
    consumer.report()
    assert_each_line_once(file, out)
    assert len(auth_server.questions) >= 2
    for question in auth_server.questions:
        assert question == {
            "common_name": [""],
            "remote_ip": ["127.0.0.1"],
            "secret": [SECRET],
            "tls": ["false"],
        }


def test_a_client_without_publish_permission_cannot_publish(
    client: Client, nsqd: NsqdProcess, topic: str, lines_file: LinesFile, tmp_path: Path
) -> None:
    file, out = lines_file(100), tmp_path / "out"
    with pytest.raises(ClientFailed, match="refused to publish"):
        client.publishing(nsqd.tcp_address, topic, file, auth_secret=READER).report()
    client.publishing(nsqd.tcp_address, topic, file, auth_secret=SECRET).report()
    client.consuming(nsqd.tcp_address, topic, "ch", 100, out, auth_secret=READER).report()
    assert_each_line_once(file, out)


@pytest.mark.parametrize("options", [{}, {"auth_secret": "wrong"}], ids=["no secret", "wrong secret"])
def test_an_unknown_client_is_refused(
    gonsq: Client, nsqd: NsqdProcess, options: dict[str, object], topic: str, lines_file: LinesFile
) -> None:
    with pytest.raises(ClientFailed):
        gonsq.publishing(nsqd.tcp_address, topic, lines_file(1), **options).report()
