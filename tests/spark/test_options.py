"""Options: accepted names and values, and error messages for others."""

import subprocess
import sys
from pathlib import Path

import pytest

from pyspark_nsq.option_table import BATCH, OPTIONS, STREAM, WRITE, Option
from pyspark_nsq.options import OptionError, read_options, write_options

GOOD = {"subscribe": "orders", "channel": "spark", "nsqdTcpAddresses": "127.0.0.1:4150", "spoolDir": "/spool"}


def test_missing_options_have_defaults():
    options = read_options(GOOD, "stream")
    assert options.topics == ("orders",)
    assert options.max_messages_per_trigger == 500_000
    assert options.idle_timeout == 0.3
    assert options.suppress_redelivered is True
    assert options.tls is False


def test_names_are_case_insensitive_and_pynsqs_names_are_accepted():
    given = {
        "TOPIC": "a, b",
        "channel": "c",
        "lookupd_http_addresses": "http://one:4161/,two:4161",
        "spooldir": "/spool",
    }
    options = read_options(given, "stream")
    assert options.topics == ("a", "b")
    assert options.lookupd_http_addresses == ("one:4161", "two:4161")


@pytest.mark.parametrize("name", ["subscribe", "channel", "spoolDir"])
def test_a_missing_required_option_is_named(name):
    with pytest.raises(OptionError, match=f"^{name} is required"):
        read_options({key: value for key, value in (GOOD | {"mode": "spool"}).items() if key != name}, "stream")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("subscribe", "not a topic"),
        ("subscribe", "orders#ephemeral"),
        ("subscribe", ","),
        ("channel", "spark#ephemeral"),
        ("channel", "x" * 65),
        ("nsqdTcpAddresses", "127.0.0.1"),
        ("nsqdTcpAddresses", "127.0.0.1:70000"),
        ("mode", "kafka"),
        ("subscribePattern", "("),
        ("startingOffsets", "newest"),
        ("startingOffsets", '{"orders": 7}'),
        ("startingOffsets", '{"orders": {"127.0.0.1:4151": -3}}'),
        ("startingOffsets", '{"orders": {"nsqd": 3}}'),
        ("startingTimestamp", "2026-01-31"),
        ("maxMessagesPerTrigger", "0"),
        ("maxMessagesPerTrigger", "many"),
        ("idleTimeoutMs", "300ms"),
        ("tls", "yes"),
        ("deflateLevel", "10"),
        ("maxTriggerDelay", "15"),
    ],
)
def test_an_error_names_the_option_and_shows_the_value(name, value):
    with pytest.raises(OptionError, match=f"^{name} must be ") as caught:
        read_options(GOOD | {name: value}, "stream")
    assert repr(value) in str(caught.value)


@pytest.mark.parametrize(
    ("more", "complaint"),
    [
        ({"lookupdHttpAddresses": "one:4161"}, "either lookupdHttpAddresses or nsqdTcpAddresses"),
        ({"nsqdTcpAddresses": ""}, "either lookupdHttpAddresses or nsqdTcpAddresses"),
        ({"subscribePattern": ".*"}, "either subscribe or subscribePattern"),
        ({"mode": "log"}, "mode=log reads over HTTP: set nsqdHttpAddresses"),
        ({"startingOffsets": "latest", "startingTimestamp": "1"}, "either startingOffsets or startingTimestamp"),
        ({"nsqdHttpAddresses": "one:4151,two:4151"}, "an address for each of nsqdTcpAddresses"),
        ({"snappy": "true", "deflate": "true"}, "cannot be combined"),
        ({"msgTimeoutMs": "10"}, "msgTimeoutMs must be"),
        ({"chunkMessages": "10", "maxInFlight": "5"}, "chunkMessages must not be greater than maxInFlight"),
        ({"tlsCaFile": "ca.pem"}, "TLS options need tls=true"),
        ({"lookupdHttpAddresses": "http://me:secret@one:4161"}, "^addresses have no user and password"),
        ({"nsqdHttpAddresses": "me:secret@one:4151"}, "^addresses have no user and password"),
        ({"nsqdHttpAddresses": "https://one:4152"}, "with https:// need tls=true"),
        ({"nsqdHttpAddresses": "one:4151", "mode": "log", "tls": "true"}, "that begin with https://"),
        ({"subscribe": "a", "topic": "b"}, "subscribe is given twice"),
        ({"maxMesagesPerTrigger": "5"}, "no option maxMesagesPerTrigger; did you mean maxMessagesPerTrigger"),
        ({"colour": "red"}, "there is no option colour"),
        ({"maxMessages": "5"}, "maxMessages is not for a stream read"),
        ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "5"}, "must not be greater than maxMessagesPerTrigger"),
    ],
)
def test_invalid_combinations_of_options_are_refused(more, complaint):
    with pytest.raises(OptionError, match=complaint):
        read_options(GOOD | more, "stream")


def test_a_secret_comes_from_a_file_or_the_environment_and_is_not_shown(tmp_path, monkeypatch):
    path = tmp_path / "secret"
    path.write_text("from the file\n")
    monkeypatch.setenv("PYSPARK_NSQ_AUTH_SECRET", "from the environment")
    in_file = read_options(GOOD | {"authSecretFile": str(path)}, "stream")
    assert in_file.auth_secret == "from the file"
    assert read_options(GOOD, "stream").auth_secret == "from the environment"
    assert read_options(GOOD | {"authSecret": "given"}, "stream").auth_secret == "given"
    assert "from" not in repr(in_file)
    with pytest.raises(OptionError, match="set either authSecret or authSecretFile"):
        read_options(GOOD | {"authSecretFile": str(path), "authSecret": "given"}, "stream")
    with pytest.raises(OptionError, match="authSecretFile: cannot read .*/missing: No such file"):
        read_options(GOOD | {"authSecretFile": str(tmp_path / "missing")}, "stream")


def test_sparks_own_options_are_ignored():
    assert read_options(GOOD | {"checkpointLocation": "/c", "path": "/p"}, "stream").channel == "spark"


def test_every_default_is_a_valid_value():
    for option in OPTIONS:
        if option.default is not None:
            option.read(option.default)


USES = {
    (STREAM, BATCH, WRITE): " (writing too)",
    (STREAM, BATCH): "",
    (STREAM,): " (streams only)",
    (BATCH,): " (batches only)",
    (WRITE,): " (writing)",
}


def row_of(option: Option) -> str:
    default = "required" if option.default is None else f"`{option.default}`" if option.default else "none"
    aliases = "".join(f"; also `{alias}`" for alias in option.aliases)
    return f"| `{option.name}` | {default} | {option.meaning}{USES[option.uses]}{aliases} |"


def test_the_table_in_the_guide_equals_the_table_of_options():
    section = Path("docs/spark.md").read_text().split("\n## Options\n")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    assert rows == [row_of(option) for option in OPTIONS]


def test_writing_has_its_own_options():
    options = write_options({"nsqdTcpAddresses": "a:1,b:2", "topic": "results", "snappy": "true"})
    assert (options.topic, options.nsqd_tcp_addresses, options.mpub_window) == ("results", ("a:1", "b:2"), 4)


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"topic": "t"}, "set either nsqdTcpAddresses, the nsqd to publish to, or lookupdHttpAddresses"),
        ({"nsqdTcpAddresses": "a:1", "lookupdHttpAddresses": "b:1"}, "set either nsqdTcpAddresses"),
        ({}, "no option is set. Spark passes the OPTIONS of a table that has columns"),
        ({"nsqdTcpAddresses": "a:1", "channel": "c"}, "channel is not for writing"),
        ({"nsqdTcpAddresses": "a:1", "topic": "no topic"}, "topic must be a topic"),
    ],
)
def test_invalid_options_of_writing_are_refused(given, complaint):
    with pytest.raises(OptionError, match=complaint):
        write_options(given)


def test_the_source_and_the_sink_need_nothing_that_spark_4_0_does_not_have():
    lacking = (
        "import sys, pyspark.sql.datasource as api; sys.modules['pyspark.sql.streaming.datasource'] = None; "
        "del api.DataSourceStreamArrowWriter"
    )
    asked = (
        "from pyspark_nsq import sink, source, spark_versions; "
        "print(spark_versions.HAS_ADMISSION, issubclass(sink.NsqStreamWriter, api.DataSourceArrowWriter))"
    )
    ended = subprocess.run([sys.executable, "-c", f"{lacking}; {asked}"], capture_output=True, text=True)
    assert ended.stdout.split() == ["False", "True"], ended.stderr
