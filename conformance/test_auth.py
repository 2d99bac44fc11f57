"""Clients that have to say who they are, and an auth server that decides what they may do."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from conformance.auth_server import EVERYTHING, AuthServer
from conformance.certificates import Certificates
from conformance.clients import Client, ClientFailed
from conformance.delivery import LinesFile, assert_each_line_once
from conformance.nsqd_process import NsqdProcess

LINES = 2000
SECRET = "both & more"
READER = "reader"


@pytest.fixture(scope="module")
def auth_server() -> Iterator[AuthServer]:
    reading = {"topic": ".*", "channels": [".*"], "permissions": ["subscribe"]}
    # So short that it is asked again while a test runs.
    with AuthServer({SECRET: EVERYTHING, READER: [reading]}, ttl=1) as server:
        yield server


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module", params=["get", "post"])
def nsqd(
    request: pytest.FixtureRequest,
    nsqd_command: str,
    auth_server: AuthServer,
    certificates: Certificates,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[NsqdProcess]:
    options = [
        *certificates.options,
        f"--tls-root-ca-file={certificates.root_ca}",
        f"--auth-http-address={auth_server.address}",
        f"--auth-http-request-method={request.param}",
    ]
    with NsqdProcess(nsqd_command, tmp_path_factory.mktemp("nsqd"), options=options) as process:
        yield process


@pytest.fixture(params=["pynsq", "gonsq", "gnsq"])
def client(request: pytest.FixtureRequest) -> Client:
    client: Client = request.getfixturevalue(request.param)
    return client


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_every_line_arrives_once(
    client: Client,
    tls: bool,
    nsqd: NsqdProcess,
    auth_server: AuthServer,
    certificates: Certificates,
    topic: str,
    lines_file: LinesFile,
    tmp_path: Path,
) -> None:
    file, out = lines_file(LINES), tmp_path / "out"
    asking: dict[str, object] = {"auth_secret": SECRET}
    if tls:
        asking["tls_root_ca_file"] = certificates.root_ca
    auth_server.questions.clear()
    consumer = client.consuming(nsqd.tcp_address, topic, "ch", LINES, out, **asking)
    publisher = client.publishing(nsqd.tcp_address, topic, file, command="mpub", batch=50, **asking)
    assert publisher.report()["published"] == LINES
    consumer.report()
    assert_each_line_once(file, out)
    assert len(auth_server.questions) >= 2
    for question in auth_server.questions:
        assert question == {
            "common_name": [""],
            "remote_ip": ["127.0.0.1"],
            "secret": [SECRET],
            "tls": ["true" if tls else "false"],
        }


def test_who_may_only_read_may_not_publish(
    client: Client, nsqd: NsqdProcess, topic: str, lines_file: LinesFile, tmp_path: Path
) -> None:
    file, out = lines_file(100), tmp_path / "out"
    with pytest.raises(ClientFailed, match="refused to publish"):
        client.publishing(nsqd.tcp_address, topic, file, auth_secret=READER).report()
    client.publishing(nsqd.tcp_address, topic, file, auth_secret=SECRET).report()
    client.consuming(nsqd.tcp_address, topic, "ch", 100, out, auth_secret=READER).report()
    assert_each_line_once(file, out)


@pytest.mark.parametrize("options", [{}, {"auth_secret": "wrong"}], ids=["no secret", "wrong secret"])
def test_a_client_nobody_knows_is_not_let_in(
    gonsq: Client, nsqd: NsqdProcess, options: dict[str, object], topic: str, lines_file: LinesFile
) -> None:
    with pytest.raises(ClientFailed):
        gonsq.publishing(nsqd.tcp_address, topic, lines_file(1), **options).report()
