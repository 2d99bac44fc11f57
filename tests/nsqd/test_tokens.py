"""An nsqd and an nsqlookupd with an access file, and clients with and without its tokens."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from nsq_compat.policy.access import hash_of
from nsq_compat.protocol.commands import COMMANDS
from nsq_conformance.cluster import eventually
from nsq_conformance.daemon_process import installed
from nsq_conformance.nsqadmin_process import NsqadminProcess
from nsq_conformance.nsqd_process import NsqdProcess, installed_nsqd
from nsq_conformance.nsqlookupd_process import NsqlookupdProcess, installed_nsqlookupd
from tests.nsqd.conftest import Events, connect
from tests.v2_client import ASKS_FOR_HEADERS, Client, Refused, hmpub, hpub, pub, sized

ALL = ("read", "publish", "consume", "operate", "admin", "mirror", "register")


class AccessFile:
    """An access file whose tokens are their names."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tokens: dict[str, str] = {}
        self.count = 0

    def has(self, name: str, *permissions: str, more: str = "") -> "AccessFile":
        self.tokens[name] = f"permissions = {list(permissions)}\n{more}\n"
        return self.written()

    def lacks(self, name: str) -> "AccessFile":
        del self.tokens[name]
        return self.written()

    def written(self) -> "AccessFile":
        rows = [
            f'[[tokens]]\nname = "{name}"\nhash = "{hash_of(name.encode())}"\n{settings}'
            for name, settings in self.tokens.items()
        ]
        self.path.write_text("\n".join(rows))
        return self


@pytest.fixture
def access(tmp_path: Path) -> AccessFile:
    return AccessFile(tmp_path / "access.toml").has("boss", *ALL)


@pytest.fixture
def nsqd(access: AccessFile, tmp_path: Path) -> Iterator[NsqdProcess]:
    data_path = tmp_path / "data"
    data_path.mkdir()
    with NsqdProcess(installed_nsqd(), data_path, options=[f"--access-file={access.path}", "--mirror-accept"]) as nsqd:
        yield nsqd


def authorized(nsqd: NsqdProcess, token: str, **fields: object) -> Client:
    client = connect(nsqd, **fields)
    try:
        client.says(b"AUTH\n" + sized(token.encode())).answer()
    except BaseException:
        client.close()
        raise
    return client


def status(nsqd: NsqdProcess, method: str, path: str, token: str = "", body: bytes = b"") -> int:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return nsqd.asks(method, path, body, **headers).status


def reload(nsqd: NsqdProcess, access: AccessFile) -> None:
    access.count += 1
    access.has(f"last{access.count}", "publish")
    nsqd.send_signal(signal.SIGHUP)
    eventually(lambda: known(nsqd, f"last{access.count}"))


COMMAND_LINES = {
    "SUB": b"SUB t c\n",
    "PUB": pub(b"m"),
    "MPUB": b"MPUB t\n" + sized(b"\0\0\0\1" + sized(b"m")),
    "DPUB": b"DPUB t 1000\n" + sized(b"m"),
    "HPUB": hpub(b"m", {"a": "b"}),
    "HMPUB": hmpub([(b"m", {"a": "b"})]),
    "MIRROR": b"MIRROR hello\n" + sized(b"{}"),
}
"""The commands that need a permission."""
WITHOUT_EFFECT = {"RDY", "FIN", "REQ", "TOUCH", "CLS", "NOP", "IDENTIFY", "AUTH"}
"""Those that act on a subscription, which needs SUB, or on the connection."""
NEEDED = dict.fromkeys(COMMAND_LINES, "publish") | {"SUB": "consume", "MIRROR": "mirror"}


def test_every_command_is_in_one_of_the_lists():
    assert {name.decode() for name in COMMANDS} == WITHOUT_EFFECT | COMMAND_LINES.keys()


@pytest.mark.parametrize("command", COMMAND_LINES)
def test_a_command_needs_auth_and_its_permission(nsqd, access, command):
    with connect(nsqd, **ASKS_FOR_HEADERS) as stranger, pytest.raises(Refused, match="E_AUTH_FIRST"):
        stranger.says(COMMAND_LINES[command]).answer()
    access.has("weaker", *(each for each in ALL if each not in (NEEDED[command], "admin")))
    access.has("right", NEEDED[command])
    reload(nsqd, access)
    with authorized(nsqd, "weaker", **ASKS_FOR_HEADERS) as client, pytest.raises(Refused, match="E_UNAUTHORIZED"):
        client.says(COMMAND_LINES[command]).answer()
    with authorized(nsqd, "right", **ASKS_FOR_HEADERS) as client:
        if command == "MIRROR":
            with pytest.raises(Refused, match="E_MIRROR_FAILED"):  # the hello is not a valid one
                client.says(COMMAND_LINES[command]).answer()
        else:
            client.says(COMMAND_LINES[command]).answer()


def known(nsqd: NsqdProcess, token: str) -> bool:
    with suppress(Refused), authorized(nsqd, token):
        return True
    return False


@pytest.mark.parametrize("secret", ["", "wrong", "Boss", "boss ", "boss\0", hash_of(b"boss")])
def test_a_wrong_token_does_not_authorize(nsqd, secret):
    with pytest.raises(Refused, match="E_AUTH_FAILED|E_BAD_BODY"):
        authorized(nsqd, secret)


def test_topics_limit_commands_and_requests(nsqd, access):
    access.has("orders", "publish", "consume", more='topics = ["orders.*"]')
    reload(nsqd, access)
    with authorized(nsqd, "orders") as client:
        client.says(pub(b"m", topic=b"orders_new")).answer()
        with pytest.raises(Refused, match="E_UNAUTHORIZED AUTH failed for PUB on .my_orders"):
            client.says(pub(b"m", topic=b"my_orders")).answer()
    assert status(nsqd, "POST", "/pub?topic=orders", "orders", b"m") == 200
    assert status(nsqd, "POST", "/pub?topic=my_orders", "orders", b"m") == 403
    assert status(nsqd, "POST", "/pub?topic=my_orders", "", b"m") == 401


def test_clients_of_a_token_that_is_revoked_are_disconnected_and_others_are_not(nsqd, access):
    access.has("consumer", "consume").has("producer", "publish")
    reload(nsqd, access)
    with authorized(nsqd, "consumer") as revoked, authorized(nsqd, "producer") as kept, connect(nsqd) as stranger:
        revoked.says(b"SUB t c\n").answer()
        access.lacks("consumer")
        reload(nsqd, access)
        assert revoked.rest() == b""
        kept.says(pub(b"m")).answer()
        stranger.says(b"AUTH\n" + sized(b"boss")).answer()
    assert nsqd.logs("its token does not permit it any more")


def test_a_primary_that_may_no_longer_mirror_is_disconnected_although_its_token_permits_more(nsqd, access):
    access.has("primary", "mirror", "publish")
    reload(nsqd, access)
    hello = {"identity": 32 * "1", "epoch": 1, "node_id": 7}
    with authorized(nsqd, "primary") as primary, authorized(nsqd, "primary") as producer:
        primary.says(b"MIRROR hello\n" + sized(json.dumps(hello).encode())).answer()
        access.has("primary", "publish")
        reload(nsqd, access)
        assert primary.rest() == b""
        producer.says(pub(b"m")).answer()
    (mirrored,) = nsqd.asks("GET", "/mirror", Authorization="Bearer boss").json()["primaries"]
    assert not mirrored["connected"]


def test_a_stream_needs_the_permission_consume_and_ends_when_its_token_is_revoked(nsqd, access):
    access.has("consumer", "consume").has("reader", "read")
    reload(nsqd, access)
    path, accept = "/channel/consume?topic=t&channel=c", {"Accept": "text/event-stream"}
    assert nsqd.asks("GET", path, **accept).status == 401
    assert nsqd.asks("GET", path, **accept, Authorization="Bearer reader").status == 403
    with Events(nsqd, "topic=t&channel=c", Authorization="Bearer consumer") as events:
        assert status(nsqd, "POST", "/pub?topic=t", "boss", b"m") == 200
        assert len(events.take(1)) == 1
        access.lacks("consumer")
        reload(nsqd, access)
        assert events.rest() == []
    assert nsqd.logs("its token does not permit it any more")


def test_an_invalid_access_file_leaves_the_tokens_in_force(nsqd, access):
    access.path.write_text("[[tokens]]\n")
    nsqd.send_signal(signal.SIGHUP)
    assert nsqd.logs("keeping the tokens in force - failed to load the access file")
    assert status(nsqd, "GET", "/stats", "boss") == 200
    assert status(nsqd, "GET", "/stats") == 401


def test_refused_requests_are_counted(nsqd):
    assert status(nsqd, "GET", "/stats") == 401
    page = nsqd.asks("GET", "/metrics", Authorization="Bearer boss").body
    assert [line for line in page.splitlines() if b"unauthorized" in line and not line.startswith(b"#")] == [
        b"nsqd_http_unauthorized_total 1.0"
    ]


def test_a_page_of_another_site_reaches_only_the_probes(nsqd, access):
    with NsqlookupdProcess(installed_nsqlookupd(), options=[f"--access-file={access.path}"]) as lookupd:
        for daemon in (nsqd, lookupd):
            statuses = [daemon.asks("GET", path, Host="evil.example").status for path in ("/ping", "/livez", "/info")]
            assert statuses == [200, 200, 421]
            # Clients with a token need no name to be configured.
            answer = daemon.asks("GET", "/info", Host="q1.corp.example", Authorization="Bearer boss")
            assert answer.status == 200
            assert daemon.asks("GET", "/info", Host="evil.example", Authorization="Bearer x").status == 401
    assert nsqd.asks("POST", "/pub?topic=t", b"m", Host="evil.example").status == 421


@pytest.mark.parametrize(
    "content",
    [
        '[[tokens]]\nname = "a"\nhash = "x"\npermissions = [["read"]]',
        f'[[tokens]]\nname = "a"\nhash = "{hash_of(b"a")}"\npermissions = ["read"]\n'
        "expires = 0001-01-01T00:00:00+23:59",
        "x = " + "[" * 5000,
        "\xff",
    ],
    ids=["nested", "year 0", "deep", "latin-1"],
)
def test_no_content_of_the_access_file_ends_a_daemon(nsqd, access, content):
    access.path.write_bytes(content.encode("latin-1"))
    nsqd.send_signal(signal.SIGHUP)
    assert nsqd.logs("keeping the tokens in force")
    assert status(nsqd, "GET", "/stats", "boss") == 200


def test_a_request_that_waits_gets_nothing_once_its_token_is_revoked(nsqd, access):
    access.has("reader", "consume")
    reload(nsqd, access)
    assert status(nsqd, "POST", "/topic/create?topic=t", "boss") == 200
    waiting = ThreadPoolExecutor(1).submit(
        lambda: nsqd.asks("GET", "/topic/read?topic=t&from=0&wait=60000", Authorization="Bearer reader")
    )
    access.lacks("reader")
    reload(nsqd, access)
    assert status(nsqd, "POST", "/pub?topic=t", "boss", b"secret") == 200
    answer = waiting.result(30)
    assert answer.status == 401
    assert b"secret" not in answer.body


def test_a_request_that_waits_takes_no_message_once_its_token_is_revoked(nsqd, access, wait_until):
    access.has("reader", "consume")
    reload(nsqd, access)
    waiting = ThreadPoolExecutor(1).submit(
        lambda: nsqd.asks("GET", "/channel/consume?topic=t&channel=c&wait=60s", Authorization="Bearer reader")
    )
    stats = "/stats?format=json&topic=t&channel=c"

    def channels() -> list[dict[str, object]]:
        topics = json.loads(nsqd.asks("GET", stats, Authorization="Bearer boss").body)["topics"]
        return topics[0]["channels"] if topics else []

    wait_until(lambda: [each["client_count"] for each in channels()] == [1])
    access.lacks("reader")
    reload(nsqd, access)
    assert status(nsqd, "POST", "/pub?topic=t", "boss", b"secret") == 200
    assert waiting.result(30).status == 401
    (channel,) = channels()
    assert (channel["depth"], channel["in_flight_count"]) == (1, 0)


# --- Registrations ----------------------------------------------------------------------------------------------------


def test_an_nsqd_registers_with_its_token_and_asks_for_channels(access, tmp_path):
    access.has("node", "register", "read", more='addresses = ["127[.]0[.]0[.]1"]')
    token = tmp_path / "token"
    token.write_text("node\n")
    # The machine's own name need not have an address.
    options = [f"--access-file={access.path}", "--broadcast-address=127.0.0.1"]
    with NsqlookupdProcess(installed_nsqlookupd(), options=options) as lookupd:
        addresses = [f"--lookupd-tcp-address={lookupd.tcp_address}"]

        def nsqd(name: str, *options: str) -> NsqdProcess:
            folder = tmp_path / name
            folder.mkdir()
            return NsqdProcess(installed_nsqd(), folder, options=[*addresses, *options])

        def asked(path: str) -> bytes:
            return lookupd.asks("GET", path, Authorization="Bearer boss").body

        def nodes() -> int:
            return len(json.loads(asked("/nodes"))["producers"])

        with nsqd("stranger", "--broadcast-address=127.0.0.1") as stranger:
            stranger.create_channel("stolen", "c")
            assert stranger.logs("a valid token is needed")
        own = f"--cluster-token-file={token}"
        with nsqd("elsewhere", "--broadcast-address=10.0.0.1", own) as elsewhere:
            elsewhere.create_channel("stolen", "c")
            assert elsewhere.logs("does not permit to register 10.0.0.1")
        assert json.loads(asked("/topics"))["topics"] == []
        with (
            nsqd("one", "--broadcast-address=127.0.0.1", own) as one,
            nsqd("two", "--broadcast-address=127.0.0.1", own) as two,
        ):
            eventually(lambda: nodes() == 2)
            assert two.logs("peer info")  # an nsqd asks the nsqlookupds that have told it their HTTP ports
            one.create_channel("orders", "archive")
            eventually(lambda: b"archive" in asked("/channels?topic=orders"))
            assert status(two, "POST", "/pub?topic=orders", "", b"m") == 200
            eventually(lambda: [each["depth"] for each in (two.topic_stats("orders") or {})["channels"]] == [1])
            access.lacks("node")
            lookupd.send_signal(signal.SIGHUP)
            eventually(lambda: nodes() == 0)
        assert lookupd.logs("its token does not permit it any more")


def run(program: str, *arguments: str, **more: Any) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name(program)), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, **more)


def test_utilities_and_nsqadmin_work_with_tokens_and_with_nothing_else(access, tmp_path):
    access.has("node", "register", "read").has("producer", "publish").has("worker", "consume", "read")
    access.has("viewer", "read").has("operator", "operate", "consume")
    own = f"--access-file={access.path}"
    for name in ("node", "operator"):
        (tmp_path / name).write_text(name)
    folder = tmp_path / "data"
    folder.mkdir()
    with NsqlookupdProcess(installed_nsqlookupd(), options=[own, "--broadcast-address=127.0.0.1"]) as lookupd:
        options = [
            own, f"--cluster-token-file={tmp_path / 'node'}", "--broadcast-address=127.0.0.1",
            f"--lookupd-tcp-address={lookupd.tcp_address}",
        ]  # fmt: skip
        with NsqdProcess(installed_nsqd(), folder, options=options) as nsqd:
            at = f"--nsqd-tcp-address={nsqd.tcp_address}"
            found = f"--lookupd-http-address={lookupd.http_address}"
            refused = run("to_nsq", "--topic=t", at, input="1\n2\n")
            assert refused.returncode == 1
            assert "E_AUTH_FIRST" in refused.stderr
            done = run("to_nsq", "--topic=t", at, "--producer-opt=auth_secret,producer", input="1\n2\n")
            assert done.returncode == 0, done.stderr
            asked = ("--topic=t", "-n=2", found)
            assert run("nsq_tail", *asked, "--consumer-opt=auth_secret,worker", "--channel=c").stdout == "1\n2\n"
            stats = run("nsq_stat", "--topic=t", "--channel=c", "--count=1", "--interval=10ms", found, "--token=viewer")
            assert stats.returncode == 0, stats.stderr
            assert "ERROR" not in stats.stderr
            lost = run("nsq_stat", "--topic=t", "--channel=c", "--count=1", "--interval=10ms", found)
            assert "401" in lost.stdout + lost.stderr
            with NsqadminProcess(installed("nsqadmin"), options=[
                found, own, f"--cluster-token-file={tmp_path / 'operator'}",
            ]) as nsqadmin:  # fmt: skip
                assert nsqadmin.asks("GET", "/api/topics").status == 401
                answer = nsqadmin.asks("GET", "/api/topics/t", Authorization="Bearer viewer")
                assert answer.json()["topic_name"] == "t"
                paused = b'{"action":"pause"}'
                assert nsqadmin.asks("POST", "/api/topics/t", paused, Authorization="Bearer viewer").status == 403
                assert nsqadmin.asks("POST", "/api/topics/t", paused, Authorization="Bearer operator").status == 200
                assert (nsqd.asks("GET", "/stats?format=json", Authorization="Bearer viewer").json())["topics"][0][
                    "paused"
                ]
                # The token of nsqadmin does not permit to delete.
                gone = nsqadmin.asks("DELETE", "/api/topics/t", Authorization="Bearer boss")
                assert b"got response 403" in gone.body
                assert nsqd.asks("GET", "/topic/offsets?topic=t", Authorization="Bearer viewer").status == 200
