"""nsqadmin as a process: start, invalid options, a real nsqd, stop."""

import base64
import json
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from contextlib import contextmanager
from urllib.error import HTTPError
from urllib.parse import urlencode

import pytest

from nsq_compat.web.admin.users import Users, make_line
from nsq_conformance.cluster import producers
from nsq_conformance.lookup_peer import RawLookupPeer
from nsq_conformance.nsqadmin_process import NsqadminProcess, installed_nsqadmin
from nsq_conformance.nsqd_process import NsqdProcess, installed_nsqd
from nsq_conformance.nsqlookupd_process import NsqlookupdProcess, installed_nsqlookupd
from tests.cluster.daemon import Daemon
from tests.cluster.hostile import (
    HostileServer,
    continuing,
    dripping_chunk_size,
    dripping_header,
    dripping_headers,
    endless_body,
)
from tests.nsqadmin.browser import until
from tests.nsqadmin.conftest import PATIENCE, publish

pytestmark = pytest.mark.real_start

NSQADMIN = [sys.executable, "-m", "nsq_compat.nsqadmin.main"]


def run(*arguments, stdin=""):
    return subprocess.run([*NSQADMIN, *arguments], capture_output=True, text=True, timeout=50, input=stdin)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "--nsqd-http-address or --lookupd-http-address required"),
        (
            ["--nsqd-http-address=127.0.0.1:1", "--http-address=127.0.0.1:99999"],
            "listen (127.0.0.1:99999) failed - invalid port",
        ),
        (["--nsqd-http-address=127.0.0.1:1", "--user-file=/dev/null/x"], "failed to read --user-file (/dev/null/x) - "),
    ],
)
def test_invalid_options_are_one_fatal_line_and_exit_code_1(arguments, reason):
    result = run("--http-address=127.0.0.1:0", *arguments)
    assert result.returncode == 1
    assert f"FATAL: failed to instantiate nsqadmin - {reason}" in result.stderr.splitlines()[-1]


def test_a_configuration_is_checked_and_the_files_it_names(tmp_path):
    arguments = ("--check-config", "--nsqd-http-address=127.0.0.1:4151")
    assert run(*arguments).stdout == "nsqadmin: configuration OK\n"
    result = run(*arguments, f"--user-file={tmp_path}/none")
    assert result.returncode == 1
    assert result.stdout == ""
    assert f"{tmp_path}/none" in result.stderr


def test_make_user_reads_the_password_from_stdin():
    result = run("--make-user=ada:operator", stdin="secret\n")
    assert result.returncode == 0
    assert Users(result.stdout).log_in("ada", "secret").name == "OPERATOR"
    assert run("--make-user=a b:admin", stdin="x\n").returncode == 1


@pytest.fixture
def users(tmp_path):
    """A user file with ada, whose password is `secret`."""
    path = tmp_path / "users"
    path.write_text(make_line("ada", "admin", "secret"))
    return path


class LoginBrowser:
    """Logs in with the form, and keeps the cookie."""

    def __init__(self, nsqadmin):
        self.nsqadmin, self.cookie = nsqadmin, ""

    def asks(self, method, path, **form):
        headers = {"Cookie": self.cookie, "Accept": "text/html", "Content-Type": "application/x-www-form-urlencoded"}
        answer = self.nsqadmin.asks(method, path, urlencode(form).encode(), **headers)
        for each in answer.headers.get_all("Set-Cookie", ()):
            self.cookie = each.partition(";")[0]
        return answer

    def submits(self, page, path, **form):
        token = self.asks("GET", page).body.decode().partition('name="csrf" value="')[2].partition('"')[0]
        return self.asks("POST", path, csrf=token, **form)

    def logs_in(self, password="secret", name="ada"):
        return self.submits("/login", "/login", name=name, password=password).status == 303

    def is_logged_in(self):
        """Whether the cookie is accepted; `cookie` stays as it is."""
        headers = {"Cookie": self.cookie, "Accept": "text/html"}
        return self.nsqadmin.asks("GET", "/policies", **headers).status == 200


def test_logins_survive_a_restart_with_a_session_file_until_they_end(nsqd, start, users, tmp_path):
    flags = [f"--nsqd-http-address={nsqd.http_address}", f"--user-file={users}", "--sample-interval=0s"]
    with_file = [*flags, f"--session-file={tmp_path / 'sessions'}"]
    first = start(*with_file)
    kept, ended, copied = (LoginBrowser(first) for _ in range(3))
    assert kept.logs_in()
    assert ended.logs_in()
    copied.cookie = ended.cookie
    assert copied.is_logged_in()
    assert ended.submits("/topics", "/logout").status == 303
    assert not copied.is_logged_in()
    first.stop()
    kept.nsqadmin = copied.nsqadmin = start(*with_file)
    assert (kept.is_logged_in(), copied.is_logged_in()) == (True, False)
    revoked = run("--revoke-sessions", f"--session-file={tmp_path / 'sessions'}")
    assert (revoked.returncode, revoked.stdout) == (0, "nsqadmin: all logins have ended\n")
    assert not kept.is_logged_in()
    assert kept.logs_in()
    kept.nsqadmin = start(*flags)
    assert not kept.is_logged_in()


def test_revoking_without_a_session_file_says_what_to_do(tmp_path):
    result = run("--revoke-sessions")
    assert result.returncode == 1
    assert "a restart ends all logins" in result.stderr
    result = run("--revoke-sessions", f"--session-file={tmp_path / 'mistyped'}")
    assert (result.returncode, result.stdout) == (1, "")
    assert "mistyped: No such file or directory" in result.stderr
    assert not list(tmp_path.iterdir())


def test_a_user_file_is_read_again_at_sighup_and_ends_the_logins_of_changed_users(nsqd, start, users):
    bob = make_line("bob", "viewer", "secret")
    users.write_text("\n".join([bob, make_line("ada", "admin", "secret")]))
    nsqadmin = start(f"--nsqd-http-address={nsqd.http_address}", f"--user-file={users}", "--sample-interval=0s")
    changed, unchanged = LoginBrowser(nsqadmin), LoginBrowser(nsqadmin)
    assert changed.logs_in()
    assert unchanged.logs_in(name="bob")
    users.write_text("nonsense")
    nsqadmin.send_signal(signal.SIGHUP)
    until(lambda: nsqadmin.logs("keeping the users - failed to read --user-file"), "the error")
    assert changed.is_logged_in()
    users.write_text("\n".join([bob, make_line("ada", "admin", "new")]))
    nsqadmin.send_signal(signal.SIGHUP)
    until(lambda: not changed.is_logged_in(), "the end of the login")
    assert unchanged.is_logged_in()
    assert not changed.logs_in()
    assert changed.logs_in("new")


def test_probes_are_answered_while_many_clients_try_passwords(nsqd, start, tmp_path):
    """Hashing a password takes longer than answering a hundred probes, and was done in the event loop."""
    users = tmp_path / "users"
    names = [f"user{number}" for number in range(24)]
    users.write_text(f"ada:admin:scrypt$16384$8$3$AAAA${'A' * 43}=")  # three times the usual cost
    nsqadmin = start(f"--nsqd-http-address={nsqd.http_address}", f"--user-file={users}", "--sample-interval=0s")
    answered = []

    def try_password(name):
        token = base64.b64encode(f"{name}:x".encode()).decode()
        answered.append(nsqadmin.asks("GET", "/api/topics", Authorization=f"Basic {token}"))

    attempts = [threading.Thread(target=try_password, args=(name,)) for name in names]
    for attempt in attempts:
        attempt.start()
    pings = 0
    while any(attempt.is_alive() for attempt in attempts):
        assert nsqadmin.get("/ping") == "OK"
        pings += 1
    for attempt in attempts:
        attempt.join(PATIENCE)
    statuses = Counter(answer.status for answer in answered)
    assert statuses[401] >= 16
    assert set(statuses) <= {401, 503}
    assert all(answer.headers["Retry-After"] == "1" for answer in answered if answer.status == 503)
    # In the event loop, two of them would be answered in all.
    assert pings > len(names)


def test_a_real_nsqd_is_shown_and_changed(nsqd, start):
    nsqd.create_channel("orders", "archive")
    publish(nsqd, "orders", "one", "two")
    nsqadmin = start(f"--nsqd-http-address={nsqd.http_address}", "--base-path=/ui")
    assert json.loads(nsqadmin.get("/ui/api/topics")) == {"topics": ["orders"], "message": ""}
    assert "archive" in nsqadmin.get("/ui/topics/orders")
    assert nsqadmin.send("/ui/api/topics/orders/archive", '{"action":"pause"}') == '{"message":""}'
    assert nsqd.channel_stats("orders", "archive")["paused"]
    messages = nsqadmin.get("/ui/topics/orders/archive/messages")
    assert ">one</pre>" in messages
    assert nsqadmin.send("/ui/api/topics/orders/archive", '{"action":"empty"}') == '{"message":""}'
    assert nsqd.channel_stats("orders", "archive")["depth"] == 0
    nsqadmin.send("/ui/api/topics/orders/archive", "", "DELETE")
    with pytest.raises(LookupError):
        nsqd.channel_stats("orders", "archive")
    with pytest.raises(HTTPError, match="404"):
        nsqadmin.get("/api/topics")
    assert nsqadmin.logs("200 GET /ui/topics/orders/archive/messages (127.0.0.1:")


@contextmanager
def registered(nsqlookupd, address, topic):
    """A client that registers with nsqlookupd as an nsqd with any address."""
    about = {"broadcast_address": address, "hostname": "web3", "tcp_port": 4150, "http_port": 4151, "version": "1.3.0"}
    with RawLookupPeer(nsqlookupd) as peer:
        peer.identifies(about)
        peer.registers(topic)
        yield


@pytest.mark.parametrize("address", ["a b", "u:p@host", "host/x?", "x" * 300, "\u00fc.example", "a\nb", "[::1"])
def test_an_nsqd_that_registers_an_invalid_address_hides_no_other(tmp_path, start, address):
    (tmp_path / "data").mkdir()
    with NsqlookupdProcess(installed_nsqlookupd()) as nsqlookupd:
        options = ["--broadcast-address=127.0.0.1", f"--lookupd-tcp-address={nsqlookupd.tcp_address}"]
        with (
            NsqdProcess(installed_nsqd(), tmp_path / "data", options=options) as nsqd,
            registered(nsqlookupd, address, "orders"),
        ):
            nsqd.create_channel("orders", "archive")
            until(lambda: producers(nsqlookupd, "orders") == 2, "both registrations")
            nsqadmin = start(f"--lookupd-http-address={nsqlookupd.http_address}", "--sample-interval=0s")
            for path in ("/nodes", "/topics/orders", "/topics/orders/archive", "/api/topics/orders", "/api/counter"):
                assert "invalid broadcast address" in nsqadmin.get(path)
            answer = json.loads(nsqadmin.get("/api/nodes"))
            assert [f"{node['broadcast_address']}:{node['http_port']}" for node in answer["nodes"]] == [
                nsqd.http_address
            ]
            assert "WARNING: " in answer["message"]
            assert nsqadmin.logs("skipped nsqd")
            assert sum("skipped nsqd" in line for line in nsqadmin._last_lines) == 1


def test_the_name_of_another_site_is_refused_until_it_is_allowed(nsqd, start):
    flags = (f"--nsqd-http-address={nsqd.http_address}", "--base-path=/ui", "--sample-interval=0s")
    nsqadmin = start(*flags)
    statuses = [nsqadmin.asks("GET", path, Host="Nsq.corp.example").status for path in ("/ui/", "/ui/api/topics")]
    assert statuses == [421, 421]
    assert nsqadmin.asks("PUT", "/ui/config/log_level", b"debug", Host="nsq.corp.example").status == 421
    assert nsqadmin.asks("GET", "/ui/ping", Host="nsq.corp.example").status == 200
    assert nsqadmin.logs("start it with --allowed-host=nsq.corp.example, or add")
    allowing = start(*flags, "--allowed-host=other.example", "--allowed-host=nsq.corp.example")
    assert allowing.asks("GET", "/ui/api/topics", Host="nsq.corp.example").status == 200
    assert allowing.asks("GET", "/ui/api/topics", Host="evil.example").status == 421


@pytest.fixture(scope="module")
def below_a_path():
    options = ["--nsqd-http-address=127.0.0.1:1", "--sample-interval=0s", "--base-path=/ui"]
    with NsqadminProcess(installed_nsqadmin(), options=options) as nsqadmin:
        yield nsqadmin


@pytest.mark.parametrize(
    ("target", "head"),
    [
        (b"/ui/docs", b"Host: localhost\r\nHost: evil.example\r\n"),
        (b"/ui/docs", b"Host: evil.example\r\nHost: localhost\r\n"),
        (b"/ui/docs", b"Host: evil.example,localhost\r\n"),
        (b"/ui/docs", b"Host: localhost@evil.example\r\n"),
        (b"/ui/docs", b"Host: evil.example:99999999\r\n"),
        (b"/ui/docs", b"Host:\tEVIL.example.\r\n"),
        (b"/ui/docs", b"Host: evil.example\r\n localhost\r\n"),
        (b"/ui/docs", b"X-Forwarded-Host: localhost\r\nHost: evil.example\r\n"),
        (b"http://localhost/ui/docs", b"Host: evil.example\r\n"),
        (b"/ui/ping/../docs", b"Host: evil.example\r\n"),
        (b"/ui/ping#/../docs", b"Host: evil.example\r\n"),
        (b"/ui/ping%2f..%2fdocs", b"Host: evil.example\r\n"),
        (b"/ui//ping", b"Host: evil.example\r\n"),
    ],
)
def test_the_name_of_another_site_is_refused_however_it_is_written(below_a_path, target, head):
    host, _, port = below_a_path.http_address.rpartition(":")
    for version in (b"1.1", b"1.0"):
        with socket.create_connection((host, int(port)), PATIENCE) as raw, raw.makefile("rb") as answer:
            raw.sendall(b"GET %b HTTP/%b\r\n%bConnection: close\r\n\r\n" % (target, version, head))
            assert answer.read().split()[1] in (b"400", b"421")


def test_a_node_that_hangs_does_not_delay_others(nsqd, start):
    publish(nsqd, "orders", "one")
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        port = deaf.getsockname()[1]
        nsqadmin = start(
            *(f"--nsqd-http-address={nsqd.http_address}", f"--nsqd-http-address=127.0.0.1:{port}"),
            *("--http-client-request-timeout=3s", "--sample-interval=0s"),
        )
        answers: list[str] = []
        waiting = threading.Thread(target=lambda: answers.append(nsqadmin.get("/api/topics")))
        waiting.start()
        with deaf.accept()[0]:
            # That request waits for the deaf node, while others are served.
            assert nsqadmin.get("/ping") == "OK"
            assert not answers
            waiting.join(PATIENCE)
    answer = json.loads(answers[0])
    assert answer["topics"] == ["orders"]
    assert "timeout" in answer["message"]


@pytest.mark.parametrize("answer", [dripping_header, dripping_headers, dripping_chunk_size, continuing])
def test_a_node_that_answers_slowly_is_a_timeout_and_its_connection_is_closed(nsqd, start, answer):
    publish(nsqd, "orders", "one")
    with HostileServer(answer) as server:
        nsqadmin = start(
            *(f"--nsqd-http-address={nsqd.http_address}", f"--nsqd-http-address={server.address}"),
            *("--http-client-request-timeout=500ms", "--sample-interval=0s"),
        )
        got = json.loads(nsqadmin.get("/api/topics"))
        assert got["topics"] == ["orders"]
        assert "timeout" in got["message"]
        until(lambda: server.completed + server.cut_off == server.requests, "the end of all connections")
        assert (server.completed, server.cut_off) == (0, server.requests)


def test_a_node_with_an_endless_answer_is_cut_off(nsqd, start):
    publish(nsqd, "orders", "one")
    with HostileServer(endless_body) as server:
        nsqadmin = start(
            *(f"--nsqd-http-address={nsqd.http_address}", f"--nsqd-http-address={server.address}"),
            *("--http-client-request-timeout=30s", "--sample-interval=0s"),
        )
        answer = json.loads(nsqadmin.get("/api/topics"))
    assert answer["topics"] == ["orders"]
    assert "the answer is larger than 33554432 bytes" in answer["message"]


def test_actions_are_posted_to_the_notification_endpoint(nsqd, start):
    nsqd.create_channel("orders", "archive")
    with Daemon() as endpoint:
        nsqadmin = start(
            f"--nsqd-http-address={nsqd.http_address}",
            f"--notification-http-endpoint=http://{endpoint.says('hook', b'', 500).address}/hook",
        )
        nsqadmin.send("/api/topics/orders", '{"action":"pause"}')
        until(lambda: endpoint.orders, "a notification")
    told = json.loads(endpoint.orders[0].removeprefix("hook "))
    assert told["action"] == "pause_topic"
    assert told["remote_ip"].startswith("127.0.0.1:")
    # After the listener closed, nsqadmin continues.
    assert nsqadmin.send("/api/topics/orders", '{"action":"unpause"}') == '{"message":""}'
    assert nsqadmin.get("/ping") == "OK"


def test_the_cluster_can_be_changed_while_it_runs(nsqd, start):
    nsqadmin = start(f"--nsqd-http-address={nsqd.http_address}")
    assert nsqadmin.send("/config/log_level", "debug", "PUT") == "1"
    assert nsqadmin.send("/config/nsqlookupd_http_addresses", '["127.0.0.1:1"]', "PUT") == '["127.0.0.1:1"]'
    with pytest.raises(HTTPError, match="502"):
        nsqadmin.get("/api/topics")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_stops_cleanly(nsqd, start, number):
    nsqadmin = start(f"--nsqd-http-address={nsqd.http_address}")
    assert nsqadmin.get("/ping") == "OK"
    nsqadmin.send_signal(number)
    assert nsqadmin.stop() == 0
