"""nsqlookupd as a process: start, stop, fatal options, and clients that misbehave. Its options are NSQ's."""

import json
import os
import random
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest

from nsq_compat.cli.flags import usage
from nsq_compat.cli.kinds import OptionError
from nsq_compat.cli.options import table_of
from nsq_compat.nsqlookupd.main import NsqlookupdOptions, validate
from nsq_conformance.lookup_peer import RawLookupPeer
from nsq_conformance.nsqlookupd_process import NsqlookupdProcess, installed_nsqlookupd

pytestmark = pytest.mark.real_start

NSQLOOKUPD = [sys.executable, "-m", "nsq_compat.nsqlookupd.main"]
ABOUT_NSQD = {"broadcast_address": "n1", "tcp_port": 4150, "http_port": 4151, "version": "1.3.0", "hostname": "h"}


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*NSQLOOKUPD, *arguments], capture_output=True, text=True, timeout=50)


def test_a_configuration_is_checked_beside_the_daemon_that_has_its_ports(nsqlookupd):
    addresses = (f"--tcp-address={nsqlookupd.tcp_address}", f"--http-address={nsqlookupd.http_address}")
    assert run("--check-config", *addresses).stdout == "nsqlookupd: configuration OK\n"
    result = run("--check-config", "--http-address=127.0.0.1:99999")
    assert result.returncode == 1
    assert result.stderr.endswith("- listen (127.0.0.1:99999) failed - invalid port\n")


@pytest.fixture
def nsqlookupd() -> Iterator[NsqlookupdProcess]:
    with NsqlookupdProcess(installed_nsqlookupd()) as process:
        yield process


def identify(document: bytes, size: int | None = None) -> bytes:
    return b"  V1IDENTIFY\n" + struct.pack(">i", len(document) if size is None else size) + document


def joins(process: NsqlookupdProcess, *topics: str) -> RawLookupPeer:
    """An nsqd that has identified itself and registered topics."""
    nsqd = RawLookupPeer(process)
    assert nsqd.identifies(ABOUT_NSQD)["tcp_port"] == int(process.tcp_address.rpartition(":")[2])
    for topic in topics:
        nsqd.registers(topic)
    return nsqd


# --- Starting and stopping --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--tcp-address=127.0.0.1:99999"], "listen (127.0.0.1:99999) failed - invalid port"),
        (["--http-address=/run/nsq.sock"], "listen (/run/nsq.sock) failed - missing port in address"),
    ],
)
def test_an_impossible_option_is_one_fatal_line_and_exit_code_1(arguments, reason):
    result = run("--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0", *arguments)
    assert result.returncode == 1
    last = result.stderr.splitlines()[-1]
    assert last.startswith("[nsqlookupd] ")
    assert last.endswith(f"FATAL: failed to instantiate nsqlookupd - {reason}")


def test_options_come_from_a_config_file_too(tmp_path):
    file = tmp_path / "nsqlookupd.cfg"
    file.write_text('broadcast_address = "lookup.example"\nlog_prefix = "[mine] "\ninactive_producer_timeout = "0s"\n')
    with (
        NsqlookupdProcess(installed_nsqlookupd(), options=[f"--config={file}"]) as process,
        RawLookupPeer(process) as client,
    ):
        assert client.identifies(ABOUT_NSQD)["broadcast_address"] == "lookup.example"
        assert process.get("/nodes") == {"producers": []}
    assert process._last_lines[0].startswith("[mine] ")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_stops_cleanly_with_clients_in_every_state(nsqlookupd, number):
    registered = joins(nsqlookupd, "t")
    clients = [*(RawLookupPeer(nsqlookupd, said) for said in (b"", b"  V1REG", b"  V")), registered]
    host, _, port = nsqlookupd.http_address.rpartition(":")
    keep_alive = socket.create_connection((host, int(port)), timeout=20)
    keep_alive.sendall(b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\n")
    assert b"OK" in keep_alive.recv(1000)
    nsqlookupd._process.send_signal(number)
    nsqlookupd._process.send_signal(number)
    assert nsqlookupd._process.wait(20) == 0
    with keep_alive:
        assert keep_alive.recv(100) == b""
    for client in clients:
        with client:
            assert client.is_closed()


def test_the_http_api_stops_before_producers_leave(nsqlookupd):
    with joins(nsqlookupd, "t"):
        assert nsqlookupd.stop() == 0
    told = [line.partition(" INFO: ")[2].partition(" ")[0] for line in nsqlookupd._last_lines if "127.0.0.1" in line]
    assert told[-5:] == ["HTTP:", "TCP:", "PROTOCOL(V1):", "DB:", "DB:"]


# --- Serving ----------------------------------------------------------------------------------------------------------


def test_a_registered_topic_is_found_until_its_producer_leaves(nsqlookupd):
    with joins(nsqlookupd, "orders") as nsqd:
        (found,) = nsqlookupd.get("/lookup", topic="orders")["producers"]
        assert (found["broadcast_address"], found["tcp_port"], found["http_port"]) == ("n1", 4150, 4151)
        host, port = nsqd._socket.getsockname()
        assert found["remote_address"] == f"{host}:{port}"
        assert nsqd.ends_sending().is_closed()
    while nsqlookupd.get("/lookup", topic="orders")["producers"]:
        pass
    assert nsqlookupd.get("/topics") == {"topics": ["orders"]}


# --- What clients cannot do -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "error"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", b"E_BAD_PROTOCOL"),
        (b"  V1\n", b"E_INVALID invalid command "),
        (b"  V1REGISTER t\n", b"E_INVALID client must IDENTIFY"),
        # nsqlookupd: this one ends Go's whole process.
        (identify(b"", -1), b"E_BAD_BODY IDENTIFY invalid body size -1"),
        (identify(b"", 0x7FFFFFFF), b"E_BAD_BODY IDENTIFY body too big 2147483647 > 16384"),
        (identify(b"[1]"), b"E_BAD_BODY IDENTIFY failed to decode JSON body"),
    ],
)
def test_invalid_input_closes_only_its_own_connection(nsqlookupd, said, error):
    with joins(nsqlookupd, "orders") as bystander, RawLookupPeer(nsqlookupd, said) as client:
        assert client.reply() == error
        assert client.is_closed()
        assert bystander.says(b"PING\n") == b"OK"
        assert len(nsqlookupd.get("/lookup", topic="orders")["producers"]) == 1


def test_garbage_and_truncated_commands_from_a_hundred_clients_are_survived(nsqlookupd):
    garbage = random.Random(1)
    whole = identify(json.dumps(ABOUT_NSQD).encode()) + b"REGISTER t c\nPING\nUNREGISTER t c\n"
    with joins(nsqlookupd, "orders") as bystander, ExitStack() as stack:
        for number in range(100):
            said = whole[: garbage.randrange(len(whole))] if number % 2 else b"  V1" + garbage.randbytes(200)
            client = stack.enter_context(RawLookupPeer(nsqlookupd, said))
            if number % 3 == 0:
                with suppress(OSError):  # it may have been closed already
                    client.ends_sending()
        assert bystander.says(b"PING\n") == b"OK"
        assert nsqlookupd.get("/lookup", topic="orders")["producers"]


# --- Options ----------------------------------------------------------------------------------------------------------

NSQ_FLAGS = {
    # flag: (type in the usage text, default there)
    "broadcast-address": ("string", f'"{os.uname().nodename}"'),
    "config": ("string", ""),
    "http-address": ("string", '"0.0.0.0:4161"'),
    "inactive-producer-timeout": ("duration", "5m0s"),
    "log-level": ("value", "INFO"),
    "log-prefix": ("string", '"[nsqlookupd] "'),
    "tcp-address": ("string", '"0.0.0.0:4160"'),
    "tombstone-lifetime": ("duration", "45s"),
    "verbose": ("", ""),
    "version": ("", ""),
}
OURS = {
    *("max-connections-per-address", "max-new-connections-per-second"),
    *("access-file", "check-config", "log-format", "tls-tcp-address", "https-address", "registration-patterns"),
    *("tls-cert", "tls-key", "tls-client-auth-policy", "tls-root-ca-file", "tls-required", "tls-min-version"),
}


def test_flags_types_and_defaults_are_nsqs():
    lines = usage("nsqlookupd", table_of(NsqlookupdOptions)).splitlines()[1:]
    shown = {}
    for head, text in zip(lines[::2], lines[1::2], strict=True):
        flag, _, kind = head.strip().removeprefix("-").partition(" ")
        _, marked, default = text.partition(" (default ")
        shown[flag] = (kind, default.removesuffix(")") if marked else "")
    assert {flag: row for flag, row in shown.items() if flag not in OURS} == NSQ_FLAGS


def test_config_keys_are_the_flags_with_underscores():
    for row in table_of(NsqlookupdOptions):
        assert row.key == row.flag.replace("-", "_")


@pytest.mark.parametrize("address", ["127.0.0.1:0", ":4160", "", "[::1]:4160"])
def test_addresses_have_a_port_or_are_left_open(address):
    validate(NsqlookupdOptions(tcp_address=address, http_address=address))


@pytest.mark.parametrize("options", [{"tcp_address": "/run/nsq.sock"}, {"http_address": "localhost"}])
def test_an_address_without_a_port_is_refused(options):
    with pytest.raises(OptionError, match=r"listen \(.*\) failed - missing port in address"):
        validate(NsqlookupdOptions(**options))
