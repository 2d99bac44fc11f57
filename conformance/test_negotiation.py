"""TLS, client certificates and compression with all clients, and that requested features are really used."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nsq_conformance.auth_server import EVERYTHING, AuthServer
from nsq_conformance.certificates import CLIENT_NAME, Certificates
from nsq_conformance.clients import Client, ClientFailed, Running
from nsq_conformance.delivery import LinesFile, assert_channel_is_done, assert_each_line_once
from nsq_conformance.nsqd_process import NsqdProcess

WAYS = ("tls", "certificate", "deflate", "snappy", "tls+deflate", "tls+snappy", "certificate+deflate")
# pynsq without the workaround is tested only with the combinations it supports reliably: see README.md.
PAIRS = [
    *(("pynsq", way) for way in ("tls", "certificate")),
    *(("patched_pynsq", way) for way in WAYS),
    *(("gonsq", way) for way in WAYS),
    *((client, way) for client in ("gnsq", "nsqjs") for way in WAYS),
]
CLIENTS = ("pynsq", "gonsq", "gnsq", "nsqjs")
AUTHORIZED = [
    *(("pynsq", way) for way in ("plain", "tls", "certificate")),
    *(("patched_pynsq", way) for way in ("deflate", "snappy", "tls+deflate")),
    *((client, way) for client in CLIENTS[1:] for way in ("plain", *WAYS[:5])),
]
LINES = 3000
MEGABYTE = 1 << 20


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def offering(
    nsqd_command: str, certificates: Certificates, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[NsqdProcess]:
    """An nsqd that offers TLS."""
    with NsqdProcess(nsqd_command, tmp_path_factory.mktemp("nsqd"), options=certificates.options) as process:
        yield process


@pytest.fixture(scope="module")
def demanding(
    nsqd_command: str, certificates: Certificates, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[NsqdProcess]:
    """An nsqd that verifies client certificates; plain HTTP stays available for the tests."""
    policy = ["--tls-client-auth-policy=require-verify", "--tls-required=tcp-https"]
    options = [*certificates.options, *policy, f"--tls-root-ca-file={certificates.root_ca}"]
    with NsqdProcess(nsqd_command, tmp_path_factory.mktemp("nsqd"), options=options) as process:
        yield process


@pytest.fixture(params=PAIRS, ids=" ".join)
def pair(request: pytest.FixtureRequest) -> tuple[str, str]:
    """The name of a client, and its transport."""
    pair: tuple[str, str] = request.param
    return pair


@pytest.fixture
def client(pair: tuple[str, str], request: pytest.FixtureRequest) -> Client:
    client: Client = request.getfixturevalue(pair[0])
    return client


@pytest.fixture
def way(pair: tuple[str, str]) -> str:
    return pair[1]


@pytest.fixture
def nsqd(way: str, request: pytest.FixtureRequest) -> NsqdProcess:
    process: NsqdProcess = request.getfixturevalue("demanding" if "certificate" in way else "offering")
    return process


@pytest.fixture
def asking(way: str, certificates: Certificates) -> dict[str, object]:
    """The options of a client for this transport. Tests may add others, such as ``auth_secret``."""
    options: dict[str, object] = {}
    if "tls" in way or "certificate" in way:
        options["tls_root_ca_file"] = certificates.root_ca
    if "certificate" in way:
        options["tls_cert"] = certificates.client
    if way.partition("+")[2] or way in ("deflate", "snappy"):
        options["compression"] = way.rpartition("+")[2]
    return options


def subscribed(nsqd: NsqdProcess, topic: str, consumer: Running) -> dict[str, Any]:
    """Wait for the consumer in /stats and return its entry."""
    deadline = time.monotonic() + 20
    while consumer.process.poll() is None:
        try:
            clients: list[dict[str, Any]] = nsqd.channel_stats(topic, "ch")["clients"]
            if clients:
                return clients[0]
        except LookupError:
            pass
        assert time.monotonic() < deadline, "no client has subscribed"
        time.sleep(0.02)
    raise AssertionError(consumer.report())


def test_every_line_arrives_once_over_the_requested_transport(
    client: Client,
    way: str,
    nsqd: NsqdProcess,
    asking: dict[str, object],
    topic: str,
    lines_file: LinesFile,
    tmp_path: Path,
) -> None:
    file, out = lines_file(LINES), tmp_path / "out"
    consumer = client.consuming(nsqd.tcp_address, topic, "ch", LINES, out, **asking)
    stats = subscribed(nsqd, topic, consumer)
    assert {name: stats[name] for name in ("tls", "deflate", "snappy")} == {
        "tls": "tls_root_ca_file" in asking,
        "deflate": way.endswith("deflate"),
        "snappy": way.endswith("snappy"),
    }
    publisher = client.publishing(nsqd.tcp_address, topic, file, command="mpub", batch=150, **asking)
    assert publisher.report()["published"] == LINES
    assert consumer.report()["attempts"] == {"1": LINES}
    assert_each_line_once(file, out)
    assert_channel_is_done(nsqd, topic, "ch", message_count=LINES)


def test_messages_of_a_megabyte_arrive_unchanged(
    client: Client, nsqd: NsqdProcess, asking: dict[str, object], topic: str, tmp_path: Path
) -> None:
    file, out = tmp_path / "long-lines", tmp_path / "out"
    noise = bytes(byte for byte in range(256) if byte != ord("\n")) * (MEGABYTE // 255)
    file.write_bytes((noise[: MEGABYTE - 2] + b"\n") * 3)  # each body begins with the line number and a tab
    consumer = client.consuming(nsqd.tcp_address, topic, "ch", 3, out, max_in_flight=2, **asking)
    assert client.publishing(nsqd.tcp_address, topic, file, window=1, **asking).report()["published"] == 3
    assert consumer.report()["finished"] == 3
    assert_each_line_once(file, out)


@pytest.mark.parametrize("pair", AUTHORIZED, ids=" ".join)
def test_clients_are_authorized_by_the_right_secret_only(
    client: Client,
    way: str,
    asking: dict[str, object],
    nsqd_command: str,
    certificates: Certificates,
    topic: str,
    lines_file: LinesFile,
    tmp_path: Path,
) -> None:
    file, out = lines_file(100), tmp_path / "out"
    asking = asking | {"auth_secret": "opensesame"}
    with AuthServer({"opensesame": EVERYTHING}) as server:
        options = [f"--auth-http-address={server.address}", *certificates.options]
        if way == "certificate":
            options += ["--tls-client-auth-policy=require-verify", "--tls-required=tcp-https"]
            options += [f"--tls-root-ca-file={certificates.root_ca}"]
        with NsqdProcess(nsqd_command, tmp_path, options=options) as nsqd:
            consumer = client.consuming(nsqd.tcp_address, topic, "ch", 100, out, **asking)
            client.publishing(nsqd.tcp_address, topic, file, **asking).report()
            consumer.report()
            assert_each_line_once(file, out)
            with pytest.raises(ClientFailed):
                client.publishing(nsqd.tcp_address, topic, file, **asking | {"auth_secret": "openbarley"}).report()
    known = {
        "tls": ["true" if "tls_root_ca_file" in asking else "false"],
        "common_name": [CLIENT_NAME if way == "certificate" else ""],
    }
    reported = [
        {key: question[key] for key in known} for question in server.questions if question["secret"] == ["opensesame"]
    ]
    assert reported == [known] * 2


@pytest.mark.parametrize("name", CLIENTS)
def test_an_unknown_client_is_refused(
    name: str,
    request: pytest.FixtureRequest,
    demanding: NsqdProcess,
    certificates: Certificates,
    topic: str,
    lines_file: LinesFile,
) -> None:
    client: Client = request.getfixturevalue(name)
    options = {"tls_root_ca_file": certificates.root_ca, "tls_cert": certificates.stranger}
    with pytest.raises(ClientFailed):
        client.publishing(demanding.tcp_address, topic, lines_file(1), **options).report()


def test_a_client_without_a_certificate_is_refused(
    gonsq: Client, demanding: NsqdProcess, certificates: Certificates, topic: str, lines_file: LinesFile
) -> None:
    with pytest.raises(ClientFailed, match="certificate required|handshake failure"):
        gonsq.publishing(demanding.tcp_address, topic, lines_file(1), tls_root_ca_file=certificates.root_ca).report()
