"""The pipelines, run with their flags on a real Spark against a real nsqd."""

import importlib
import json
import shutil
import time
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset
import pytest
from pyspark.sql import SparkSession

from nsq_compat.client.dedupe import overwritten
from nsq_conformance.nsqd_process import NsqdProcess, installed_nsqd
from pyspark_nsq import command_line

pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("spark")]

JOBS = (
    "batch_drain",
    "dedupe",
    "json_lake",
    "lake",
    "nsq_to_nsq",
    "publisher",
    "replay",
    "sessions",
    "windowed_counts",
)


def run(name: str, *arguments: object) -> int:
    """Run a job and return its exit status."""
    job = importlib.import_module(f"spark.jobs.{name}")
    return command_line.run(job.parser(), job.job, [str(each) for each in arguments])


@pytest.fixture
def source(nsqd: NsqdProcess, topic: str, tmp_path: Path) -> list[str]:
    """Flags for a job that reads the test's topic."""
    (tmp_path / "spool").mkdir()
    return [
        *(f"--topic={topic}", "--channel=c", f"--spool={tmp_path / 'spool'}"),
        *(f"--nsqd-tcp-address={nsqd.tcp_address}", f"--nsqd-http-address={nsqd.http_address}"),
    ]


@pytest.fixture
def stream(source: list[str], tmp_path: Path) -> list[str]:
    """Flags for a streaming job that reads the test's topic."""
    return [*source, "--once", f"--checkpoint={tmp_path / 'checkpoint'}"]


@pytest.fixture
def log(retaining: NsqdProcess, topic: str, tmp_path: Path) -> list[str]:
    """Flags for a streaming job that reads the test's topic by offset."""
    return [
        *(f"--topic={topic}", f"--nsqd-http-address={retaining.http_address}"),
        *("--once", f"--checkpoint={tmp_path / 'checkpoint'}", f"--path={tmp_path / 'table'}"),
    ]


def post(nsqd: NsqdProcess, topic: str, bodies: Sequence[bytes]) -> None:
    assert nsqd.asks("POST", f"/mpub?topic={topic}", b"\n".join(bodies)).status == 200


def bodies_in(spark: SparkSession, table: Path) -> list[bytes]:
    return sorted(bytes(row.body) for row in spark.read.parquet(str(table)).select("body").collect())


def test_lines_are_published_filtered_and_drained(nsqd, topic, source, stream, tmp_path, capsys):
    nsqd.create_channel(topic, "c")
    nsqd.create_channel(f"{topic}.b", "c")
    lines = [b'{"kind": "view"}', b'{"kind": "order"}', b"", b"no JSON: \xff"]
    (tmp_path / "lines").write_bytes(b"\n".join(lines))
    target = f"--to-nsqd-tcp-address={nsqd.tcp_address}"
    assert run("publisher", f"--path={tmp_path / 'lines'}", f"--to-topic={topic}", target) == 0
    assert f"published 3 messages to {topic}" in capsys.readouterr().out
    chosen = "--where=text LIKE 'no JSON%' OR get_json_object(text, '$.kind') = 'order'"
    assert run("nsq_to_nsq", *stream, f"--to-topic={topic}.b", target, chosen) == 0
    assert "batch 0: 3 messages so far" in capsys.readouterr().out
    drained = ["--format=json", f"--path={tmp_path / 'out'}", f"--topic={topic}.b"]
    assert run("batch_drain", *source, *drained) == 0
    assert f"2 messages are in {tmp_path / 'out'}" in capsys.readouterr().out
    rows = [json.loads(line) for file in (tmp_path / "out").glob("*.json") for line in file.read_text().splitlines()]
    assert {row.get("body") or row["body_base64"] for row in rows} == {'{"kind": "order"}', "bm8gSlNPTjog/w=="}
    assert not list((tmp_path / "spool").glob("batch-*"))


def test_a_redelivered_message_is_in_the_table_once(spark, publish, stream, tmp_path, capsys):
    bodies = publish(5)
    table = tmp_path / "table"
    assert run("lake", *stream, f"--path={table}") == 0
    (spooled,) = (tmp_path / "spool").glob("*/1/0/*.spool")
    shutil.copy(spooled, spooled.parents[2] / "orphans")
    bodies += publish(1)
    assert run("lake", *stream, f"--path={table}") == 0
    assert "6 messages so far" in (fields_of := capsys.readouterr().out)
    assert "5 left out" in fields_of
    assert bodies_in(spark, table) == sorted(bodies)
    assert [folder.name.startswith("day=20") for folder in table.glob("day=*")] == [True]


def test_a_message_that_waited_long_is_not_dropped_as_late(spark, nsqd, topic, stream, tmp_path):
    forgetful = [*stream, f"--path={tmp_path / 'table'}", "--within=0 seconds"]
    with NsqdProcess(installed_nsqd(), tmp_path) as other:
        for each, body in ((other, b"published first, read last"), (nsqd, b"published last")):
            each.create_channel(topic, "c")
            post(each, topic, [body])
        assert run("lake", *forgetful) == 0
        assert bodies_in(spark, tmp_path / "table") == [b"published last"]
        both = [f"--nsqd-tcp-address={other.tcp_address}", f"--nsqd-http-address={other.http_address}"]
        assert run("lake", *forgetful, *both) == 0
    assert bodies_in(spark, tmp_path / "table") == [b"published first, read last", b"published last"]


def test_copies_from_two_nsqd_become_one_row(spark, nsqd, topic, stream, tmp_path):
    with NsqdProcess(installed_nsqd(), tmp_path) as twin:
        for each in (nsqd, twin):
            each.create_channel(topic, "c")
            post(each, topic, [b"one", b"two", b"three"])
        both = [*stream, f"--nsqd-tcp-address={twin.tcp_address}", f"--nsqd-http-address={twin.http_address}"]
        assert run("dedupe", *both, f"--path={tmp_path / 'table'}") == 0
    assert bodies_in(spark, tmp_path / "table") == [b"one", b"three", b"two"]


def forget_commit(checkpoint: Path) -> None:
    """As if Spark had died after the last batch was written and before it was committed: the batch is repeated."""
    last = max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    last.unlink()
    last.with_name(f".{last.name}.crc").unlink()


def seen_by_pyarrow(table: Path) -> pa.Table:
    """What a reader sees that knows only the folder, nothing of Spark."""
    return pyarrow.dataset.dataset(table, format="parquet", partitioning="hive").to_table()


def test_the_lake_has_every_message_once_for_a_reader_that_is_not_spark(spark, send, log, tmp_path, capsys):
    bodies = send(500)
    assert run("lake", *log, "--option=maxOffsetsPerTrigger=200") == 0
    forget_commit(tmp_path / "checkpoint")
    bodies += send(3)
    assert run("lake", *log) == 0
    assert "3 messages so far" in capsys.readouterr().out
    rows = seen_by_pyarrow(tmp_path / "table")
    assert sorted(rows.column("body").to_pylist()) == sorted(bodies)
    assert sorted(rows.column("offset").to_pylist()) == list(range(503))
    hours = {f"{at:%Y-%m-%d %H}" for at in rows.column("timestamp").to_pylist()}
    folders = {f"{file.parent.parent.name[4:]} {file.parent.name[5:]}" for file in (tmp_path / "table").glob("*/*/*")}
    assert hours == folders
    assert bodies_in(spark, tmp_path / "table") == sorted(bodies)
    # Another checkpoint would begin with messages that the table has.
    another = [*log, f"--checkpoint={tmp_path / 'another'}"]
    assert run("lake", *another) == 1
    assert f"lake.py: path: {tmp_path / 'table'} was written by another query" in capsys.readouterr().err
    assert seen_by_pyarrow(tmp_path / "table").num_rows == len(bodies)


def test_the_lake_is_compacted(spark, send, log, tmp_path, capsys):
    bodies = send(50)
    assert run("lake", *log, "--option=maxOffsetsPerTrigger=20", "--compact-after=1") == 0
    assert len(list((tmp_path / "table").glob("*/*/*"))) >= 3
    # An hour counts as over two hours before its end.
    assert run("lake", *log, "--compact-after=-2") == 0
    assert "compacted" in capsys.readouterr().out
    assert len(list((tmp_path / "table").glob("*/*/*"))) == len(list((tmp_path / "table").glob("*/*")))
    assert sorted(seen_by_pyarrow(tmp_path / "table").column("body").to_pylist()) == bodies
    assert bodies_in(spark, tmp_path / "table") == bodies


@pytest.mark.newer_spark
@pytest.mark.parametrize(("slots", "tolerance"), [(20_000, 0.02), (200_000, 0.01)])
def test_duplicates_pass_as_often_as_the_formula_says(retaining, topic, send, log, tmp_path, slots, tolerance):
    bodies = send(20_000)
    post(retaining, topic, bodies)
    batches = "--option=maxOffsetsPerTrigger=20000"
    assert run("dedupe", *log, batches, f"--slots={slots}") == 0
    found = Counter(seen_by_pyarrow(tmp_path / "table").column("body").to_pylist())
    # No message is dropped that was not seen.
    assert found.keys() == set(bodies)
    missed = (found.total() - len(bodies)) / len(bodies)
    print(f"{slots} slots: {missed:.4f} of the duplicates passed, expected {overwritten(slots, 19_999):.4f}")
    assert abs(missed - overwritten(slots, 19_999)) < tolerance


@pytest.mark.parametrize("how", ["--within=1 hour", pytest.param("--slots=100000", marks=pytest.mark.newer_spark)])
def test_messages_with_a_key_are_there_once_and_those_without_one_by_their_bodies(
    spark, retaining, topic, log, tmp_path, how
):
    orders = [b'{"order": 1, "try": 1}', b'{"order": 1, "try": 2}', b'{"order": 2}', b"no JSON", b"none", b"none"]
    for name in (topic, f"{topic}.other"):
        post(retaining, name, orders)
    key = "--key=get_json_object(CAST(body AS STRING), '$.order')"
    both = [f"--topic={topic},{topic}.other", *log[1:]]
    assert run("dedupe", *both, how, key) == 0
    assert bodies_in(spark, tmp_path / "table") == sorted([orders[0], *orders[2:5]] * 2)


@pytest.mark.newer_spark
def test_a_message_has_all_its_columns_after_the_slots(retaining, topic, send, log, tmp_path):
    send(3)
    assert run("dedupe", *log, "--slots=1000") == 0
    table = seen_by_pyarrow(tmp_path / "table")
    # The time of publishing, to the microsecond, is in the folder's hour.
    for row in table.to_pylist():
        assert (row["topic"], row["partition"], row["channel"]) == (topic, retaining.http_address, None)
        assert f"{row['timestamp']:%Y-%m-%d} {row['timestamp'].hour}" == f"{row['day']} {row['hour']}"
        assert abs(row["timestamp"].replace(tzinfo=UTC).timestamp() - time.time()) < 600
    assert sorted(table.column("offset").to_pylist()) == [0, 1, 2]


def now() -> str:
    """The time after all messages that were published, and before all that will be, to the millisecond."""
    began = time.time()
    while time.time() < began + 0.002:
        time.sleep(0.0005)
    stamp = datetime.fromtimestamp(int(time.time() * 1000) / 1000, UTC).isoformat()
    while time.time() < began + 0.004:
        time.sleep(0.0005)
    return stamp


def test_a_time_is_counted_and_replayed_to_a_topic_and_to_a_table(spark, retaining, topic, send, log, tmp_path, capsys):
    send(5)
    begin = now()
    chosen = send(7)
    end = now()
    send(3)
    span = [*log[:2], f"--from={begin}", f"--to={end}"]
    assert run("replay", *span, "--dry-run") == 0
    address = retaining.http_address
    assert f": 7 messages of {topic} on {address}\n7 messages would be replayed" in capsys.readouterr().out
    retaining.create_channel(f"{topic}.again", "c")
    target = [f"--to-topic={topic}.again", f"--to-nsqd-tcp-address={retaining.tcp_address}"]
    assert run("replay", *span, *target) == 0
    assert "7 messages; 7 of 7 replayed" in capsys.readouterr().out
    assert retaining.channel_stats(f"{topic}.again", "c")["message_count"] == 7
    # The same command again finds that the table has everything.
    for _ in range(2):
        assert run("replay", *span, f"--path={tmp_path / 'table'}") == 0
        assert sorted(seen_by_pyarrow(tmp_path / "table").column("body").to_pylist()) == chosen


def test_replay_refuses_a_time_that_is_not_over_and_a_channel(log, source, capsys):
    assert run("replay", *log[:2], "--from=2026-11-25T08:00", "--to=2100-01-01", "--path=/nowhere") == 2
    assert "--to must not be later than now" in capsys.readouterr().err
    assert run("replay", *log[:2], "--day=2026-11-25", "--to=2026-11-26", "--path=/nowhere") == 2
    assert "give either --day, or --from and a later --to" in capsys.readouterr().err
    assert run("replay", *source, "--day=2026-11-25", "--path=/nowhere") == 2
    assert "--spool: only what nsqd retains" in capsys.readouterr().err
    unreachable = ["--topic=t", "--nsqd-http-address=127.0.0.1:1"]
    assert run("replay", *unreachable, "--day=2025-11-25", "--path=/nowhere") == 1
    assert capsys.readouterr().err.startswith("replay.py: mode=log needs an answer of every nsqd")


def event(key: str, time: object) -> bytes:
    return json.dumps({"page": key, "at": time}).encode()


def test_final_windows_are_rows_of_a_table(spark, nsqd, topic, stream, tmp_path, capsys):
    nsqd.create_channel(topic, "c")
    post(nsqd, topic, [event("/", 0), event("/", 59.5), event("/help", 60), b"{}", event("/", 500)])
    counts = [*stream, f"--path={tmp_path / 'table'}", "--key=page", "--time=at", "--watermark=0 seconds"]
    # The event without a time counts as happened now, which makes all other windows final.
    assert run("windowed_counts", *counts) == 0
    rows = spark.read.parquet(str(tmp_path / "table")).collect()
    assert sorted((row.start.timestamp(), row.key, row.events) for row in rows) == [
        (0, "/", 2),
        (60, "/help", 1),
        (480, "/", 1),
    ]
    post(nsqd, topic, [event("/", 30)])
    capsys.readouterr()
    assert run("windowed_counts", *counts) == 0
    assert "1 left out" in capsys.readouterr().out


def test_events_of_a_key_become_sessions_and_late_ones_are_left_out(retaining, topic, log, tmp_path, capsys):
    # Out of order, but in time: 20 joins 0 and 40 to one session.
    visits = [event("a", 0), event("a", 40), event("b", 5), event("a", 20), event("a", 100), event("b", 1000)]
    post(retaining, topic, visits)
    sessions = [*log, "--key=page", "--time=at", "--gap=30 seconds", "--late=60 seconds"]
    assert run("sessions", *sessions) == 0

    def found() -> list[tuple[object, ...]]:
        return sorted(
            (row["key"], *(row[name].replace(tzinfo=UTC).timestamp() for name in ("start", "end")), row["events"])
            for row in seen_by_pyarrow(tmp_path / "table").to_pylist()
        )

    expected = [("a", 0, 70, 3), ("a", 100, 130, 1), ("b", 5, 35, 1)]
    assert found() == expected
    # Of a session that is written, and of one that is open.
    post(retaining, topic, [event("a", 60), event("b", 1010)])
    capsys.readouterr()
    assert run("sessions", *sessions) == 0
    assert "1 left out" in capsys.readouterr().out
    post(retaining, topic, [event("c", 5000)])
    assert run("sessions", *sessions) == 0
    assert found() == [*expected, ("b", 1000, 1040, 2)]


def test_json_becomes_columns_and_what_is_bad_a_table_of_its_own(retaining, topic, log, tmp_path):
    good = [b'{"page": "/", "at": 1.5, "tags": ["x"]}', b' {"at": 2, "more": {}}', '{"page": "\u00e9"}'.encode()]
    bad = {
        b'{"page": "/", "at": "soon"}': "not JSON of the schema",
        b'{"page": "/"': "not JSON of the schema",
        b"[]": "not a JSON object",
        b'[{"page": "/"}]': "not a JSON object",
        b"null": "not a JSON object",
        b'{"page": "\xff"}': "not UTF-8",
    }
    lake = [*log, f"--bad-path={tmp_path / 'bad'}", "--schema=page STRING, at DOUBLE, tags ARRAY<STRING>"]
    post(retaining, topic, [*good, *bad])
    assert run("json_lake", *lake) == 0
    forget_commit(tmp_path / "checkpoint")
    post(retaining, topic, [b"no JSON", b'{"at": 3}'])
    assert run("json_lake", *lake) == 0
    rows = seen_by_pyarrow(tmp_path / "table").sort_by("nsq_offset").to_pylist()
    assert [(row["page"], row["at"], row["tags"]) for row in rows] == [
        ("/", 1.5, ["x"]),
        (None, 2.0, None),
        ("\u00e9", None, None),
        (None, 3.0, None),
    ]
    assert [row["nsq_offset"] for row in rows] == [0, 1, 2, 10]
    assert {row["nsq_topic"] for row in rows} == {topic}
    left = {row["body"]: row["reason"] for row in seen_by_pyarrow(tmp_path / "bad").to_pylist()}
    assert left == bad | {b"no JSON": "not a JSON object"}
    assert seen_by_pyarrow(tmp_path / "bad").num_rows == len(left)


def test_the_last_windows_are_printed(nsqd, topic, stream, capsys):
    nsqd.create_channel(topic, "c")
    post(nsqd, topic, [event("/", 0), event("/", 1), event("/help", 2), event("/", 7200), event("/b", 7201)])
    assert run("windowed_counts", *stream, "--key=page", "--time=at", "--windows=2", "--keys=2") == 0
    table = [line.split() for line in capsys.readouterr().out.splitlines()[-3:]]
    assert [row[0] for row in table] == ["key", "/", "/b"]
    assert table[0][-1] == "total"
    assert [row[1:] for row in table[1:]] == [["2", "1", "3"], ["0", "1", "1"]]


def test_no_table_is_printed_at_intervals_before_there_are_events(nsqd, topic, source, tmp_path, capsys):
    nsqd.create_channel(topic, "c")
    endless = [*source, f"--checkpoint={tmp_path / 'checkpoint'}", "--for=2", "--show-every=0.1"]
    assert run("windowed_counts", *endless, "--key=page") == 0
    assert capsys.readouterr().out.splitlines() == ["no events were counted"]


@pytest.mark.parametrize("name", JOBS)
def test_help_shows_the_spark_submit_command(name, capsys):
    with pytest.raises(SystemExit):
        run(name, "--help")
    assert f"spark-submit {name}.py --" in capsys.readouterr().out


def test_every_job_has_a_test():
    assert {file.stem for file in Path("spark/jobs").glob("*.py")} == set(JOBS)


def test_wrong_flags_are_reported_before_spark_is_called(stream, capsys):
    assert run("lake", *stream, "--path=/nowhere", "--channel=c#ephemeral") == 2
    assert capsys.readouterr().err.startswith("lake.py: channel must be a channel without #ephemeral")
    assert run("lake", *stream, "--path=/nowhere", "--option=tls") == 2
    assert "--option must be NAME=VALUE" in capsys.readouterr().err


def test_a_failure_in_spark_is_reported_in_one_sentence(source, tmp_path, capsys):
    unreachable = ["--nsqd-tcp-address=127.0.0.1:1", "--nsqd-http-address=127.0.0.1:1"]
    flags = [*(each for each in source if "address" not in each), *unreachable, f"--path={tmp_path / 'out'}"]
    assert run("batch_drain", *flags) == 1
    assert capsys.readouterr().err.startswith("batch_drain.py: nsqdTcpAddresses: no nsqd can be reached; start one")
    assert run("publisher", f"--path={tmp_path / 'no'}", "--to-topic=t", "--to-nsqd-tcp-address=127.0.0.1:1") == 1
    assert capsys.readouterr().err.startswith("publisher.py: [PATH_NOT_FOUND] Path does not exist")


def test_a_table_in_delta_needs_a_session_with_delta(send, log, capsys):
    send(1)
    assert run("lake", *log, "--format=delta") == 2
    assert capsys.readouterr().err.startswith("lake.py: --format delta needs Delta: give spark-submit its package")
