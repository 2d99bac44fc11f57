"""An nsqlookupd as consumers and operators use it: official clients find nsqd through it."""

from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError

import pytest

from nsq_conformance.clients import Client
from nsq_conformance.cluster import eventually
from nsq_conformance.delivery import LinesFile, assert_channel_is_done, assert_each_line_once
from nsq_conformance.lookup_peer import LookupPeer
from nsq_conformance.nsqd_process import NsqdProcess
from nsq_conformance.nsqlookupd_process import NsqlookupdProcess

UNREACHABLE = "127.0.0.1:1"


@pytest.fixture(scope="module")
def second_nsqd(nsqd_command: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NsqdProcess]:
    with NsqdProcess(nsqd_command, tmp_path_factory.mktemp("nsqd")) as process:
        yield process


def test_a_consumer_finds_every_nsqd_that_has_its_topic(
    client: Client,
    nsqd: NsqdProcess,
    second_nsqd: NsqdProcess,
    nsqlookupd: NsqlookupdProcess,
    topic: str,
    lines_file: LinesFile,
    tmp_path: Path,
) -> None:
    file, out = lines_file(300), tmp_path / "out"
    with LookupPeer(nsqlookupd, nsqd) as one, LookupPeer(nsqlookupd, second_nsqd) as other:
        one.registers(topic)
        other.registers(topic, "ch")
        both = client.discovering([nsqlookupd.http_address], topic, "ch", 600, out)
        for each in (nsqd, second_nsqd):
            client.publishing(each.tcp_address, topic, file).report()
        assert both.report()["attempts"] == {"1": 600}
    for each in (nsqd, second_nsqd):
        assert_channel_is_done(each, topic, "ch", message_count=300)


def test_a_consumer_that_starts_before_its_topic_finds_it_later(
    client: Client, nsqd: NsqdProcess, nsqlookupd: NsqlookupdProcess, topic: str, lines_file: LinesFile, tmp_path: Path
) -> None:
    file, out = lines_file(200), tmp_path / "out"
    consumer = client.discovering([UNREACHABLE, nsqlookupd.http_address], topic, "ch", 200, out)
    client.publishing(nsqd.tcp_address, topic, file).report()
    with LookupPeer(nsqlookupd, nsqd) as peer:
        peer.registers(topic)
        assert consumer.report()["finished"] == 200
    assert_each_line_once(file, out)


def test_a_consumer_stays_connected_when_nsqlookupd_stops(
    client: Client, nsqd: NsqdProcess, nsqlookupd_command: str, topic: str, lines_file: LinesFile, tmp_path: Path
) -> None:
    file, out = lines_file(200), tmp_path / "out"
    nsqd.create_channel(topic, "ch")
    with NsqlookupdProcess(nsqlookupd_command) as directory, LookupPeer(directory, nsqd) as peer:
        peer.registers(topic)
        consumer = client.discovering([directory.http_address], topic, "ch", 200, out)
        eventually(lambda: nsqd.channel_stats(topic, "ch")["client_count"], consumer)
    client.publishing(nsqd.tcp_address, topic, file).report()
    assert consumer.report()["finished"] == 200
    assert_each_line_once(file, out)


def test_registrations_end_with_their_connection(nsqd: NsqdProcess, nsqlookupd: NsqlookupdProcess, topic: str) -> None:
    with LookupPeer(nsqlookupd, nsqd) as peer:
        assert peer.about_nsqlookupd["http_port"] == int(nsqlookupd.http_address.rpartition(":")[2])
        peer.registers(topic, "ch")
        found = nsqlookupd.get("/lookup", topic=topic)
        assert found["channels"] == ["ch"]
        assert [each["http_port"] for each in found["producers"]] == [int(nsqd.http_address.rpartition(":")[2])]
        (node,) = [each for each in nsqlookupd.get("/nodes")["producers"] if topic in each["topics"]]
        assert node["tombstones"] == [False]
    eventually(lambda: not nsqlookupd.get("/lookup", topic=topic)["producers"])
    assert nsqlookupd.get("/channels", topic=topic) == {"channels": ["ch"]}


def test_an_unknown_topic_is_not_found(nsqlookupd: NsqlookupdProcess) -> None:
    with pytest.raises(HTTPError, match="404"):
        nsqlookupd.get("/lookup", topic="nobody_knows_it")


def test_a_command_out_of_place_ends_its_connection_only(
    nsqd: NsqdProcess, nsqlookupd: NsqlookupdProcess, topic: str
) -> None:
    with LookupPeer(nsqlookupd, nsqd) as bystander, LookupPeer(nsqlookupd, nsqd) as peer:
        bystander.registers(topic)
        assert peer.says(b"IDENTIFY\n") == b"E_INVALID cannot IDENTIFY again"
        with pytest.raises(EOFError):
            peer.says(b"")
        assert bystander.says(b"PING\n") == b"OK"
        assert len(nsqlookupd.get("/lookup", topic=topic)["producers"]) == 1
