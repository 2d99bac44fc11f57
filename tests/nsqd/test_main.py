"""nsqd as a process: how it starts, refuses to start, and stops."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import gevent
import pytest

from nsq_compat import __version__
from nsq_conformance.nsqd_process import NsqdProcess, installed_nsqd
from tests.nsqd.conftest import connect, tcp_address
from tests.v2_client import Client

pytestmark = pytest.mark.real_start


def run(*arguments: str, program: str = "nsqd") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", f"nsq_compat.{program}.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=50)


@pytest.fixture
def nsqd(tmp_path: Path) -> Iterator[NsqdProcess]:
    with NsqdProcess(installed_nsqd(), tmp_path) as process:
        yield process


@pytest.mark.parametrize("program", ["nsqd", "nsqlookupd", "nsqadmin"])
def test_the_version_can_be_parsed_by_nsqs_clients(program):
    result = run("--version", program=program)
    assert (result.returncode, result.stderr) == (0, "")
    for_clients, for_operators = result.stdout.splitlines()
    # The pattern of gnsq, the strictest of the clients that read it.
    assert re.fullmatch(rf"{program} v1\.3\.0 \(built w/[a-z0-9.-]+\)", for_clients)
    assert for_operators.startswith(f"nsq_compat {__version__}, compiled: ")


def test_the_log_and_info_have_the_versions_and_the_kind_of_build(nsqd: NsqdProcess):
    versions = run("--version").stdout.splitlines()
    assert all(nsqd.logs(f" INFO: {line}") for line in versions)
    assert nsqd.asks("GET", "/info").json()["nsq_compat"]["compiled"] == versions[1].endswith("compiled: yes")


@pytest.mark.parametrize("program", ["nsqd", "nsqlookupd"])
def test_an_unknown_flag_exits_as_gos_do(program):
    result = run("-bogus", program=program)
    assert result.returncode == 2
    assert result.stderr.startswith(f"flag provided but not defined: -bogus\nUsage of {program}:\n")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--max-deflate-level=10"], "--max-deflate-level must be [1,9]"),
        (["--tcp-address=127.0.0.1:99999"], "listen (127.0.0.1:99999) failed - invalid port"),
    ],
)
def test_a_failed_start_is_one_fatal_line_and_exit_code_1(arguments, reason, tmp_path):
    result = run("--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0", f"--data-path={tmp_path}", *arguments)
    assert result.returncode == 1
    last = result.stderr.splitlines()[-1]
    assert last.startswith("[nsqd] ")
    assert last.endswith(f"FATAL: failed to instantiate nsqd - {reason}")


@pytest.mark.parametrize("program", ["nsqd", "nsqlookupd", "nsqadmin"])
def test_with_json_every_log_line_is_json(program, tmp_path):
    addresses = {
        "nsqd": [f"--data-path={tmp_path}", "--tcp-address=127.0.0.1:0"],
        "nsqlookupd": ["--tcp-address=127.0.0.1:0"],
        "nsqadmin": ["--nsqd-http-address=127.0.0.1:1"],
    }
    result = run("--log-format=json", "--http-address=127.0.0.1:99999", *addresses[program], program=program)
    lines = [json.loads(line) for line in result.stderr.splitlines()]
    assert len(lines) >= 2
    assert (lines[0]["level"], lines[0]["prefix"]) == ("INFO", f"[{program}]")
    assert lines[-1]["level"] == "FATAL"
    assert lines[-1]["message"].endswith("invalid port")


def test_a_configuration_is_checked_beside_the_running_daemon(nsqd, tmp_path):
    before = sorted(tmp_path.iterdir())
    result = run("--check-config", f"--tcp-address={nsqd.tcp_address}", f"--data-path={tmp_path}")
    assert (result.returncode, result.stdout, result.stderr) == (0, "nsqd: configuration OK\n", "")
    assert sorted(tmp_path.iterdir()) == before


def test_unknown_options_in_the_config_file_are_named(tmp_path):
    config = tmp_path / "nsqd.cfg"
    config.write_text('bogus_option = 3\n[[policies]]\ntopic = "orders"\nmax_depth = 5\n')
    (tmp_path / "data").mkdir()
    result = run("--check-config", f"--config={config}", f"--data-path={tmp_path}/data")
    named = f'nsqd: config file {config}: unknown option "bogus_option" is ignored\n'
    assert (result.returncode, result.stdout, result.stderr) == (0, f"{named}nsqd: configuration OK\n", "")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--max-deflate-level=0"], "failed to instantiate nsqd - --max-deflate-level must be [1,9]"),
        (["--data-path=/none"], "failed to lock data-path: open /none: no such file or directory"),
        (["--tls-cert=/none", "--tls-key=/none"], "failed to build TLS config - open /none: no such file or directory"),
        (["--tls-root-ca-file=/none"], "failed to build client TLS config - no such file or directory"),
        (["--tcp-address=/none/socket"], "listen (/none/socket) failed - no such file or directory"),
        (["--http-address=192.0.2.1:4151"], "listen (192.0.2.1:4151) failed - cannot assign requested address"),
        (["--config=/none"], "failed to load config file /none - open /none: no such file or directory"),
    ],
)
def test_a_configuration_that_would_not_start_is_one_fatal_line_and_exit_code_1(arguments, reason, tmp_path):
    result = run("--check-config", f"--data-path={tmp_path}", *arguments)
    assert (result.returncode, result.stdout) == (1, "")
    [line] = result.stderr.splitlines()
    assert reason in line
    assert list(tmp_path.iterdir()) == []


def test_a_second_daemon_on_the_same_port_is_refused(nsqd):
    result = run(f"--tcp-address={nsqd.tcp_address}", "--http-address=127.0.0.1:0")
    assert result.returncode == 1
    assert "address already in use" in result.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_stops_cleanly_with_clients_in_every_state(nsqd, number):
    publishing, half = connect(nsqd), connect(nsqd)
    publishing.publishes(b"x")
    half.says(b"PUB t\n\0\0")
    silent = socket.create_connection(tcp_address(nsqd), timeout=20)
    keep_alive = socket.create_connection(nsqd.http_address.split(":"), timeout=20)
    keep_alive.sendall(b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\n")
    assert b"OK" in keep_alive.recv(1000)
    nsqd._process.send_signal(number)
    nsqd._process.send_signal(number)
    assert nsqd._process.wait(20) == 0
    for client in (silent, publishing.socket, half.socket, keep_alive):
        with client:
            assert client.recv(100) == b""
    nsqd._reader.join()
    assert "NSQ: bye" in nsqd._last_lines[-1]


def test_data_is_private_whatever_the_umask_and_the_mode_of_the_data_path(tmp_path):
    tmp_path.chmod(0o755)  # chosen by the operator, and not changed
    script = f'umask 0; exec {installed_nsqd()} "$@"'
    with (
        NsqdProcess(f"bash -c '{script}' nsqd", tmp_path, options=["--mem-queue-size=1"]) as nsqd,
        connect(nsqd) as client,
    ):
        nsqd.create_channel("t", "c")
        client.publishes(*[b"x"] * 10)
    modes = {path.relative_to(tmp_path).as_posix(): path.stat().st_mode & 0o777 for path in tmp_path.rglob("*")}
    assert {"nsqd.dat", "nsq_compat/t.topic/checkpoint"} <= set(modes)
    assert set(modes.values()) == {0o600, 0o700}
    assert {name for name, mode in modes.items() if mode == 0o700} == {"nsq_compat", "nsq_compat/t.topic"}
    assert tmp_path.stat().st_mode & 0o777 == 0o755


def test_a_damaged_nsqd_dat_is_kept_aside_and_every_message_is_there(tmp_path):
    with NsqdProcess(installed_nsqd(), tmp_path) as nsqd, connect(nsqd) as client:
        nsqd.create_channel("t", "c")
        client.publishes(*[b"x"] * 10)
        nsqd.kill()
    (tmp_path / "nsqd.dat").write_bytes(b"garbage")
    with NsqdProcess(installed_nsqd(), tmp_path) as nsqd:
        assert nsqd.channel_stats("t", "c")["depth"] == 10
        [error] = [line for line in nsqd._last_lines if "ERROR" in line]
        assert f"metadata in {tmp_path}/nsqd.dat is damaged" in error
        assert f"kept as {tmp_path}/nsqd.dat.bad-1" in error
        assert nsqd.stop() == 0
    assert (tmp_path / "nsqd.dat.bad-1").read_bytes() == b"garbage"
    assert [topic["name"] for topic in json.loads((tmp_path / "nsqd.dat").read_bytes())["topics"]] == ["t"]


def test_an_nsqd_dat_that_the_system_does_not_let_it_read_is_one_fatal_line(tmp_path):
    (tmp_path / "nsqd.dat").mkdir()
    result = run("--tcp-address=127.0.0.1:0", "--http-address=127.0.0.1:0", f"--data-path={tmp_path}")
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1].endswith(
        f"FATAL: failed to load metadata - failed to read metadata from {tmp_path}/nsqd.dat - is a directory"
    )
    assert (tmp_path / "nsqd.dat").is_dir()


def test_an_ipv4_wildcard_serves_both_families(tmp_path):
    process = NsqdProcess(installed_nsqd(), tmp_path, options=["--tcp-address=0.0.0.0:0"])
    with process:
        for host in ("127.0.0.1", "::1"):
            with Client((host, tcp_address(process)[1])) as client:
                client.publishes(b"x")


def test_unix_sockets_serve_both_protocols_and_are_gone_after_a_clean_stop(tmp_path):
    tcp, http = tmp_path / "tcp.sock", tmp_path / "http.sock"
    options = [f"--tcp-address={tcp}", f"--http-address={http}", f"--data-path={tmp_path}"]
    command = [sys.executable, "-m", "nsq_compat.nsqd.main", *options]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if "HTTP: listening on" in line:
            break
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(20)
        client.connect(str(tcp))
        client.sendall(b"  V2PUB t\n\0\0\0\1x")
        assert client.recv(10, socket.MSG_WAITALL).endswith(b"OK")
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(20)
        client.connect(str(http))
        client.sendall(b"GET /info HTTP/1.0\r\n\r\n")
        answer = b"".join(iter(lambda: client.recv(65536), b""))
    assert b'"http_port":-1,"tcp_port":-1' in answer
    process.terminate()
    process.communicate(timeout=20)
    assert process.returncode == 0
    assert not tcp.exists()
    assert not http.exists()


def test_an_nsqd_with_an_invalid_broadcast_address_warns_and_starts(tmp_path):
    with NsqdProcess(installed_nsqd(), tmp_path, options=["--broadcast-address=user:pw@host"]) as nsqd:
        assert nsqd.logs('WARNING: --broadcast-address: invalid broadcast address "user:pw@host"; clients that')


def test_debug_shows_commands_and_deliveries_of_all_clients_from_when_it_is_set(nsqd):
    with connect(nsqd) as before:
        before.publishes(b"x")
        nsqd.asks("PUT", "/config/log_level", b"debug")
        before.publishes(b"y", topic=b"later")
        with connect(nsqd) as after:
            after.subscribes(b"later", b"c", ready=1)
            assert nsqd.logs("[PUB later]")
            assert nsqd.logs("[RDY 1]")
            assert nsqd.logs("DEBUG: PROTOCOL(V2): writing msg(")
            nsqd.asks("PUT", "/config/log_level", b"info")
            before.publishes(b"z", topic=b"last")
            assert nsqd.logs("TOPIC(last): created")
            assert not nsqd.logs("[PUB last]", timeout=0)


def test_info_and_stats_show_the_real_ports_and_clients(nsqd):
    assert nsqd.asks("GET", "/info").json()["tcp_port"] == tcp_address(nsqd)[1]
    with connect(nsqd) as client:
        client.publishes(b"x")
        (producer,) = nsqd.stats_document()["producers"]
    assert producer["pub_counts"] == [{"topic": "t", "count": 1}]


def test_a_lack_of_descriptors_is_survived_without_using_the_cpu(tmp_path):
    script = f'ulimit -n 64; exec {installed_nsqd()} "$@"'
    with NsqdProcess(f"bash -c '{script}' nsqd", tmp_path) as nsqd, ExitStack() as stack:
        clients = [stack.enter_context(connect(nsqd)) for _ in range(100)]
        before = _cpu_seconds(nsqd)
        clients[0].publishes(*[b"x"] * 1000)
        for client in clients[:-1]:
            client.close()
        clients[-1].publishes(b"x")
        assert _cpu_seconds(nsqd) - before < 5


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_with_a_busy_poll_time_it_does_not_sleep_after_a_command(tmp_path, durability):
    options = ["--busy-poll-time=5m", f"--durability={durability}"]
    with NsqdProcess(installed_nsqd(), tmp_path, options=options) as nsqd, connect(nsqd) as client:
        # What is published first is answered at the end of the turn, with what others publish in it.
        client.publishes(b"x")
        looked_until = _cpu_seconds(nsqd) + 0.5
        with gevent.Timeout(30):
            while _cpu_seconds(nsqd) < looked_until:
                gevent.sleep(0.05)
        # And no client waits for it.
        client.publishes(b"x")
        assert nsqd.asks("GET", "/ping").body == b"OK"


def _cpu_seconds(process: NsqdProcess) -> float:
    fields = Path(f"/proc/{process._process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
