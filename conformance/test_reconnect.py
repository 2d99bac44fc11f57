"""Official clients reconnect to a restarted nsqd and continue."""

from pathlib import Path

from nsq_conformance.clients import Client
from nsq_conformance.cluster import count, eventually
from nsq_conformance.nsqd_process import NsqdProcess
from nsq_conformance.nsqlookupd_process import NsqlookupdProcess

LINES = 50


def lines(folder: Path, name: str) -> Path:
    file = folder / name
    file.write_text("".join(f"{name} {number}\n" for number in range(LINES)))
    return file


def test_a_consumer_continues_after_a_restart_of_nsqd(
    client: Client, nsqd_command: str, nsqlookupd_command: str, topic: str, tmp_path: Path
) -> None:
    out, data_path = tmp_path / "out", tmp_path / "data"
    data_path.mkdir()
    with NsqlookupdProcess(nsqlookupd_command) as directory:
        options = [f"--lookupd-tcp-address={directory.tcp_address}", "--broadcast-address=127.0.0.1"]
        with NsqdProcess(nsqd_command, data_path, options=options) as nsqd:
            nsqd.create_channel(topic, "ch")
            consumer = client.discovering([directory.http_address], topic, "ch", 2 * LINES, out, distinct=1)
            eventually(lambda: count(nsqd, topic, "ch", "client_count"), consumer)
            client.publishing(nsqd.tcp_address, topic, lines(tmp_path, "before")).report()
            eventually(lambda: all_finished(nsqd, topic), consumer)
            nsqd.stop()
            nsqd.start()
            client.publishing(nsqd.tcp_address, topic, lines(tmp_path, "after")).report()
            assert consumer.report()["finished"] >= 2 * LINES
    arrived = {body.partition(b"\t")[2].decode() for body in out.read_bytes().splitlines()}
    assert arrived == {f"{name} {number}" for name in ("before", "after") for number in range(LINES)}


def all_finished(nsqd: NsqdProcess, topic: str) -> bool:
    """Whether all published messages are finished."""
    channel = nsqd.channel_stats(topic, "ch")
    return channel["message_count"] == LINES and not channel["depth"] and not channel["in_flight_count"]
