"""The spool tool, on a spool that tasks have filled."""

import base64
import json

import pytest

from pyspark_nsq.drain import drain
from pyspark_nsq.rows import Origin
from pyspark_nsq.spool_tool import main


@pytest.fixture
def filled(spool, options_with, publish):
    """The bodies in batches 1 and 2 of the stream."""
    bodies = publish(5)
    options = options_with()
    origin = Origin(options.topics[0], "c", options.nsqd_tcp_addresses[0])
    for seq, count in ((1, 2), (2, 3)):
        drain(spool, spool.partition(seq, 0), origin, count, options)
    return bodies


def test_list_shows_streams_and_their_batches(spool, filled, tmp_path, capsys):
    assert main(["list", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "stream: batches 0 to 1, 5 messages, of which 0 belong to no batch yet\n"


def test_orphans_are_counted_and_shown(spool, filled, tmp_path, capsys):
    (spool.partition(2, 0).folder / "SEALED").unlink()
    spool.clean(2)
    main(["list", str(tmp_path)])
    assert capsys.readouterr().out == "stream: no batches, 3 messages, of which 3 belong to no batch yet\n"
    main(["show", str(tmp_path), "stream"])
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_show_prints_every_message_with_its_origin(filled, topic, tmp_path, capsys, nsqd):
    assert main(["show", str(tmp_path), "stream", "--after", "0"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [base64.b64decode(row["body"]) for row in rows] == filled[2:]
    assert {(row["nsqd"], row["topic"], row["channel"]) for row in rows} == {(nsqd.tcp_address, topic, "c")}


def test_requeue_publishes_messages_and_keeps_the_spool(filled, topic, tmp_path, capsys, nsqd):
    assert main(["requeue", str(tmp_path), "stream", "--nsqd-http-address", nsqd.http_address]) == 0
    assert capsys.readouterr().out.startswith("published 5 messages; the spool still contains them")
    assert nsqd.channel_stats(topic, "c")["message_count"] == 10
    assert main(["show", str(tmp_path), "stream"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 5


def test_purge_deletes_one_stream(spool, filled, tmp_path):
    assert main(["purge", str(tmp_path), "stream"]) == 0
    assert not spool.folder.exists()
    assert tmp_path.is_dir()


@pytest.mark.parametrize("command", ["show", "purge"])
def test_an_unknown_stream_is_an_error(command, tmp_path, capsys):
    assert main([command, str(tmp_path), "other"]) == 1
    assert capsys.readouterr().err == f"there is no stream other in {tmp_path}; the command list shows all streams\n"


def test_an_unreachable_nsqd_is_an_error(filled, tmp_path, capsys):
    assert main(["requeue", str(tmp_path), "stream", "--nsqd-http-address", "127.0.0.1:1"]) == 1
    assert "http://127.0.0.1:1/mpub" in capsys.readouterr().err
