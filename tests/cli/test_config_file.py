import re
from dataclasses import dataclass

import pytest

from nsq_compat.cli.flags import (
    exit_checked,
    exit_fatal,
    load_config,
    merge_config,
    read_options,
    warn_of_options,
)
from nsq_compat.cli.kinds import BOOLEAN, INTEGER, STRING, STRINGS, TLS_MIN_VERSION, OptionError
from nsq_compat.cli.options import DaemonOptions, Option, option, table_of
from nsq_compat.protocol.errors import hidden

FATAL_LINE = r"\[prog\] \d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{6} FATAL: "


@dataclass(slots=True, kw_only=True)
class Options(DaemonOptions):
    id: int = option(INTEGER, 1, "", flag="node-id")
    fast: bool = option(BOOLEAN, True, "", flag="fast")
    peers: tuple[str, ...] = option(STRINGS, (), "", flag="peer")
    tls_min_version: int = option(TLS_MIN_VERSION, 769, "", flag="tls-min-version")


TABLE = table_of(Options)


def read(*words):
    return read_options("prog", Options, words, "prog v1")


def status_of(call, *arguments):
    """The status with which it ends the program."""
    with pytest.raises(SystemExit) as caught:
        call(*arguments)
    return caught.value.code


@pytest.fixture
def write_config(tmp_path):
    path = tmp_path / "nsqd.cfg"

    def write(content):
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    return write


def test_without_words_options_are_the_defaults():
    assert read() == Options()


def test_a_flag_wins_over_the_file_and_the_file_over_the_default(write_config):
    path = write_config("id = 6\nfast = false\n")
    assert read(f"-config={path}", "-node-id=7") == Options(config=path, id=7, fast=False)


def test_version_is_printed_on_stdout_and_wins_over_a_wrong_config_file(capfd):
    assert status_of(read, "-version", "-config=/nowhere/at/all") == 0
    assert capfd.readouterr() == ("prog v1\n", "")


def test_version_does_not_win_over_a_wrong_flag(capfd):
    assert status_of(read, "-version", "-bogus") == 2
    assert capfd.readouterr().err.startswith("flag provided but not defined: -bogus\nUsage of prog:\n")


def test_a_later_flag_overrides_version():
    assert read("-version", "-version=false").version is False


def test_a_wrong_config_file_is_a_fatal_line_with_the_default_prefix(capfd, tmp_path):
    assert status_of(read, f"-config={tmp_path}/none") == 1
    reason = f"failed to load config file {tmp_path}/none - open {tmp_path}/none: no such file or directory"
    assert re.fullmatch(FATAL_LINE + re.escape(reason) + "\n", capfd.readouterr().err)


@pytest.mark.parametrize("key", ["max_connections_per_address", "max_new_connections_per_second"])
def test_a_negative_limit_of_connections_is_refused(key, capfd, write_config):
    flag = f"--{key.replace('_', '-')}"
    for words in ([f"{flag}=-1"], [f"--config={write_config(f'{key} = -1')}"]):
        with pytest.raises(SystemExit, match="1"):
            read(*words)
        assert capfd.readouterr().err.endswith(f"FATAL: {flag} must not be negative\n")


def test_a_successful_check_is_reported_on_stdout(capfd):
    assert status_of(exit_checked, "prog") == 0
    assert capfd.readouterr() == ("prog: configuration OK\n", "")


def test_a_fatal_line_is_one_line(capfd):
    assert status_of(exit_fatal, "prog", "bad\n[prog] news") == 1
    assert re.fullmatch(FATAL_LINE + r"bad\\n\[prog\] news\n", capfd.readouterr().err)


# --- The config file --------------------------------------------------------------------------------------------------


def reason_of(call, *arguments):
    with pytest.raises(OptionError) as caught:
        call(*arguments)
    return str(caught.value)


def test_a_file_is_toml(write_config):
    assert load_config(write_config('id = 5\npeers = ["a"]\n')) == {"id": 5, "peers": ["a"]}


def test_a_byte_order_mark_and_windows_line_ends_are_accepted(write_config):
    assert load_config(write_config(b"\xef\xbb\xbfid = 5\r\nfast = true\r\n")) == {"id": 5, "fast": True}


def test_a_folder_is_reported_in_go_s_words(tmp_path):
    assert (
        reason_of(load_config, str(tmp_path))
        == f"failed to load config file {tmp_path} - read {tmp_path}: is a directory"
    )


@pytest.mark.parametrize(
    "content", [b"id", b"id =", b"id = 5\nid = 6", b"id = '\xff'", b"\xff\xfei\x00", b"id = " + b"9" * 5000, b"\0"]
)
def test_a_file_that_is_not_toml_is_refused_by_name(write_config, content):
    path = write_config(content)
    assert reason_of(load_config, path).startswith(f"failed to load config file {path} - ")


def test_deep_nesting_is_refused_like_any_other_error(write_config):
    path = write_config("a = " + "[" * 5000 + "]" * 5000)
    assert reason_of(load_config, path) == f"failed to load config file {path} - nested too deeply"


def test_the_file_sets_options_that_the_command_line_does_not():
    content = {"id": 5, "fast": False, "log_level": "debug", "peers": ["a", "b"]}
    given = {"id": 7, "peers": ("x",)}
    assert merge_config(TABLE, given, "f", content) == {**given, "fast": False, "log_level": 1}


@pytest.mark.parametrize("key", ["version", "node_id", "node-id", "ID", "peer", "bogus", "section"])
def test_unknown_keys_flag_spellings_and_sections_are_ignored(key):
    assert merge_config(TABLE, {}, "f", {key: {"id": 5}}) == {}


UNKNOWN = """\
bogus = 3
LOG-LEVEL = "debug"
lid = 4
id = 5
[section]
id = 6
[[table]]
id = 7
"""


def unknown(path):
    return [
        f'config file {path}: unknown option "LOG-LEVEL" is ignored; did you mean log_level?',
        f'config file {path}: unknown option "bogus" is ignored',
        f'config file {path}: unknown option "lid" is ignored; did you mean id?',
        f'config file {path}: unknown option "section" is ignored',
    ]


def test_a_start_logs_the_unknown_keys_of_the_file(write_config, caplog):
    path = write_config(UNKNOWN)
    warn_of_options(read_options("prog", Options, [f"--config={path}"], "prog v1", {"table"}), "prog")
    assert caplog.messages == unknown(path)


def test_a_start_warns_of_words_that_are_ignored_without_showing_them(caplog):
    for words in (["x", "--log-level=debug"], ["--", "--log-level=debug", "secret"], ["secret", "y"]):
        caplog.clear()
        warn_of_options(read_options("prog", Options, words, "prog v1"), "prog")
        assert "ignored words at the end of the command line: 2," in caplog.text
        assert "secret" not in caplog.text
    caplog.clear()
    warn_of_options(read_options("prog", Options, ["--log-level=debug", "--"], "prog v1"), "prog")
    assert not caplog.text


def test_check_config_prints_the_unknown_keys_of_the_file(write_config, capsys, caplog):
    path = write_config(UNKNOWN)
    words = [f"--config={path}", "--check-config"]
    warn_of_options(read_options("prog", Options, words, "prog v1", {"table"}), "prog")
    assert capsys.readouterr().out == "".join(f"prog: {line}\n" for line in unknown(path))
    assert caplog.messages == []


def test_a_wrong_value_is_named_with_its_file_and_key():
    reason = reason_of(merge_config, TABLE, {}, "f", {"id": "5k"})
    assert reason == 'failed to load config file f - id: expected an integer, got "5k": parse error'


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ({"log_level": "loud"}, "failed parsing log_level loud"),
        ({"log_level": 1}, "failed parsing log_level 1"),
        ({"log_level": True}, "failed parsing log_level true"),
        ({"tls_min_version": "ssl3.0"}, "failed parsing tls_min_version ssl3.0"),
    ],
)
def test_a_wrong_name_is_reported_in_go_s_words(content, reason):
    assert reason_of(merge_config, TABLE, {}, "f", content) == reason


def test_names_are_checked_first_and_even_when_a_flag_overrides_them():
    content = {"id": "x", "log_level": "loud"}
    assert reason_of(merge_config, TABLE, {"log_level": 1}, "f", content) == "failed parsing log_level loud"


def test_other_values_are_not_checked_when_a_flag_overrides_them():
    assert merge_config(TABLE, {"id": 7}, "f", {"id": "x"}) == {"id": 7}


SECRETS = (
    Option("password", "password", STRING, "", "what to say", True, False, hidden),
    Option("password-file", "password_file", STRING, "", "a file with it", True, False, file_of="password"),
)


def test_a_secret_comes_from_a_file_that_the_config_file_names(tmp_path):
    path = tmp_path / "secret"
    path.write_text("opensesame\n")
    content = {"password_file": str(path)}
    assert merge_config(SECRETS, {}, "f", content) == {"password": "opensesame"}
    assert merge_config(SECRETS, {"password": "given"}, "f", content) == {"password": "given"}
    assert reason_of(merge_config, SECRETS, {}, "f", content | {"password": "x"}) == (
        "failed to load config file f - use password or password_file, not both"
    )


def test_a_wrong_secret_is_not_shown():
    reason = reason_of(merge_config, SECRETS, {}, "f", {"password": ["opensesame"]})
    assert reason == "failed to load config file f - password: expected a string"
