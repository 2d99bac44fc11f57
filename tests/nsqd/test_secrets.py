"""Secrets of live programs: given in every way, they work, and are found only where they belong."""

import signal
import socket
import subprocess
from collections.abc import Iterator, Sequence
from io import StringIO
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from nsq_compat.cli.options import table_of
from nsq_compat.nsqd.options import NsqdOptions
from nsq_conformance.auth_server import EVERYTHING, AuthServer
from nsq_conformance.daemon_process import DaemonProcess, installed
from nsq_conformance.nsqadmin_process import NsqadminProcess, installed_nsqadmin
from nsq_conformance.nsqd_process import NsqdProcess, installed_nsqd
from tests.client.waiting import wait_until
from tests.v2_client import Client, Refused

PATIENCE = 30.0
# With a mark, so that the text is nowhere by chance.
secrets = st.text("abcXYZ0189-_.~!$'()*;", min_size=1, max_size=20).map(lambda text: f"s3cr3t{text}")
few = settings(
    max_examples=3,
    phases=[Phase.explicit, Phase.generate],  # each example takes a second, and a shorter secret says no more
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)

WAYS = ("command line", "file", "environment")


@pytest.fixture
def server() -> Iterator[AuthServer]:
    with AuthServer({"right": EVERYTHING}) as server:
        yield server


def given_by(
    way: str, program: str, flags: dict[str, str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Sequence[str]:
    """The words of the command line; sets the environment or writes files."""
    words = []
    for flag, value in flags.items():
        if way == "command line":
            words.append(f"--{flag}={value}")
        elif way == "file":
            (folder / flag).write_text(value + "\n")
            words.append(f"--{flag}-file={folder / flag}")
        else:
            monkeypatch.setenv(f"{program}_{flag}".upper().replace("-", "_"), value)
    return words


def authenticate(client: Client, secret: str) -> None:
    client.identifies().hears(b"OK")
    client.says_with_body(b"AUTH", secret.encode())
    client.answer()


def says(address: str, data: bytes) -> bytes:
    """Everything that a server answers to these bytes."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: connection.recv(65536), b""))


def everything_it_shows(daemon: DaemonProcess, keys: Sequence[str], secret: str) -> bytes:
    """The answers to requests, some of which bring the secret along."""
    paths = [f"/config/{key}" for key in keys]
    paths += ["/stats", "/stats?format=json", "/info", "/metrics", "/debug/pprof/cmdline", "/debug/pprof/heap?debug=1"]
    paths += ["/debug/pprof/goroutine?debug=2", "/nothing", "/config/nothing"]
    answers = [daemon.asks("GET", path).body for path in paths]
    for target in (f"http://me:{secret}@host/info", f"/info?auth_secret={quote(secret)}", "/info"):
        head = f"GET {target} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {secret}\r\nConnection: close\r\n\r\n"
        answers.append(says(daemon.http_address, head.encode()))
    return b"".join(answers)


@pytest.mark.parametrize("way", WAYS)
@few
@given(secret=secrets)
def test_no_secret_of_nsqd_is_in_logs_answers_or_files(way, secret, server, tmp_path_factory):
    folder = tmp_path_factory.mktemp("secrets")
    (data := folder / "data").mkdir()
    mirroring = ({"topic": ".*", "channels": [".*"], "permissions": ["publish", "mirror"]},)
    server.authorizations = {secret: mirroring}
    log, log_of_standby = StringIO(), StringIO()
    (folder / "standby").mkdir()
    accepts = (
        "--node-id=1",
        "--mirror-accept",
        "--mirror-takeover-after=manual",
        f"--auth-http-address={server.address}",
    )
    flags = {
        "mirror-auth-secret": secret,
        "auth-http-address": f"http://me:{secret}@{server.address}/auth?key={quote(secret)}",
    }
    with (
        pytest.MonkeyPatch.context() as monkeypatch,
        NsqdProcess(installed_nsqd(), folder / "standby", options=accepts, log=log_of_standby) as standby,
    ):
        words = given_by(way, "nsqd", flags, folder, monkeypatch)
        options = [
            "--node-id=2",
            "--log-level=debug",
            f"--mirror-to={standby.tcp_address}",
            "--mirror-timeout=100ms",
            *words,
        ]
        with NsqdProcess(installed_nsqd(), data, options=options, log=log) as nsqd:
            wait_until(lambda: nsqd.asks("GET", "/mirror").json()["standby"]["state"] == "in sync", PATIENCE)
            with Client(nsqd.tcp_address) as client:
                authenticate(client, secret)
                client.publishes(b"body", topic=b"orders")
            for server.answer in (None, (500, b"no")):
                with Client(nsqd.tcp_address) as client, pytest.raises(Refused, match="E_AUTH_FAILED"):
                    authenticate(client, f"{secret}wrong")
            server.answer = None
            shown = everything_it_shows(nsqd, [row.key for row in table_of(NsqdOptions)], secret)
            nsqd.send_signal(signal.SIGHUP)
            assert nsqd.logs("no certificate to reload")
    assert secret.encode() not in shown
    written = log.getvalue() + log_of_standby.getvalue()
    assert secret not in written
    assert quote(secret) not in written
    assert written.count("is visible in the process list") == (2 if way == "command line" else 0)
    assert not [path for path in data.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()]


@pytest.mark.parametrize("way", WAYS)
@few
@given(secret=secrets)
def test_no_secret_of_nsqadmin_is_in_logs_or_pages(way, secret, server, tmp_path_factory):
    folder = tmp_path_factory.mktemp("secrets")
    (folder / "data").mkdir()
    log = StringIO()
    flags = {
        "notification-http-endpoint": f"http://me:{secret}@{server.address}/actions?token={quote(secret)}",
        "graphite-url": f"http://me:{secret}@{server.address}",
    }
    with (
        pytest.MonkeyPatch.context() as monkeypatch,
        NsqdProcess(installed_nsqd(), folder / "data", options=["--broadcast-address=127.0.0.1"]) as nsqd,
    ):
        nsqd.create_channel("orders", "archive")
        words = given_by(way, "nsqadmin", flags, folder, monkeypatch)
        options = ["--log-level=debug", f"--nsqd-http-address={nsqd.http_address}", *words]
        with NsqadminProcess(installed_nsqadmin(), options=options, log=log) as nsqadmin:
            shown = everything_it_shows(nsqadmin, ["graphite_url", "notification_http_endpoint"], secret)
            for path in ("/", "/topics", "/topics/orders", "/topics/orders/archive", "/nodes", "/counter"):
                shown += nsqadmin.asks("GET", path).body
            shown += nsqadmin.asks("GET", "/api/graphite?metric=rate&target=x").body
            shown += nsqadmin.asks("POST", "/api/topics/orders", b'{"action": "pause"}').body
            assert nsqadmin.logs("POSTing notification to http://" + server.address)
            server.answer = (500, b"no")
            wait_until(lambda: any("actions" in each for each in server.requests), PATIENCE)
    assert secret.encode() not in shown
    assert quote(secret).encode() not in shown
    assert secret not in log.getvalue()
    assert quote(secret) not in log.getvalue()
    assert log.getvalue().count("is visible in the process list") == (2 if way == "command line" else 0)


@pytest.mark.parametrize("way", WAYS)
def test_a_utility_sends_its_secret_and_shows_it_nowhere(way, server, tmp_path, monkeypatch):
    (tmp_path / "data").mkdir()
    server.authorizations = {"right": EVERYTHING}
    words = given_by(way, "to_nsq", {"producer-opt": "auth_secret,right"}, tmp_path, monkeypatch)
    with NsqdProcess(installed_nsqd(), tmp_path / "data", options=[f"--auth-http-address={server.address}"]) as nsqd:
        command = [installed("to_nsq"), "--topic=orders", f"--nsqd-tcp-address={nsqd.tcp_address}", *words]
        done = subprocess.run(command, input="hello\n", capture_output=True, text=True, timeout=PATIENCE)
        stats = nsqd.topic_stats("orders")
    assert (done.returncode, stats and stats["message_count"]) == (0, 1)
    assert "right" not in done.stdout + done.stderr
    assert ("visible in the process list: use --producer-opt-file" in done.stderr) == (way == "command line")


@pytest.mark.parametrize(
    "words",
    [
        ["--consumer-opt=auth_secrt,s3cr3t", "--nsqd-tcp-address=127.0.0.1:1"],
        ["--consumer-opt=auth_secret,s3cr3t", "--nsqd-tcp-address=127.0.0.1:1"],
        ["--lookupd-http-address=http://me:s3cr3t@127.0.0.1:1"],
        ["---consumer-opt=auth_secret,s3cr3t"],
    ],
)
def test_a_utility_that_fails_shows_no_secret(words):
    command = [installed("nsq_to_http"), "--topic=t", "--post=http://me:s3cr3t@127.0.0.1:1/?key=s3cr3t", *words]
    command += ["--header=Authorization: s3cr3t", "--post=nonsense://me:s3cr3t@host"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode != 0
    assert "s3cr3t" not in done.stdout + done.stderr
