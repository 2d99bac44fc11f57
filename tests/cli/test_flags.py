import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nsq_compat.cli.flags import Arguments, FlagError, HelpRequested, parse, parse_arguments, usage
from nsq_compat.cli.kinds import (
    BOOLEAN,
    DURATION,
    FLOATS,
    INTEGER,
    LOG_LEVEL,
    STRING,
    STRINGS,
    TLS_REQUIREMENT,
    OptionError,
)
from nsq_compat.cli.options import Option, option, option_value, table_of
from nsq_compat.protocol.durations import MINUTE, SECOND
from nsq_compat.protocol.errors import hidden, without_secrets


@dataclass(slots=True, kw_only=True)
class Options:
    size: int = option(INTEGER, 5, "how many", flag="size")
    wait: int = option(DURATION, MINUTE, "how long", flag="wait")
    name: str = option(STRING, "a b", "what to call it", flag="name")
    empty: str = option(STRING, "", "path of a `file` to read", flag="empty")
    peers: tuple[str, ...] = option(STRINGS, (), "one of the others", flag="peer")
    percentiles: tuple[float, ...] = option(FLOATS, (), "which ones", flag="percentile")
    fast: bool = option(BOOLEAN, True, "hurry", flag="fast")
    slow: bool = option(BOOLEAN, False, "do not hurry\nat all", flag="slow")
    log_level: int = option(LOG_LEVEL, 2, "what to log", flag="log-level")
    tls: int = option(TLS_REQUIREMENT, 0, "be careful", flag="tls")
    x: bool = option(BOOLEAN, False, "one letter", flag="x")
    n: int = option(INTEGER, 0, "another letter", flag="n")


TABLE = table_of(Options)


@pytest.mark.parametrize(
    ("words", "given", "rest"),
    [
        ([], {}, ()),
        (["-size=7"], {"size": 7}, ()),
        (["--size", "7"], {"size": 7}, ()),
        (["-size", "-7"], {"size": -7}, ()),
        (["-size=1", "-size=0x10"], {"size": 16}, ()),
        (["-wait=1.5s"], {"wait": 3 * SECOND // 2}, ()),
        (["-name="], {"name": ""}, ()),
        (["-name", ""], {"name": ""}, ()),
        (["-name=a=b"], {"name": "a=b"}, ()),
        (["-name", "-slow"], {"name": "-slow"}, ()),
        (["-name", "--"], {"name": "--"}, ()),
        (["-peer=a,b", "-peer", "c"], {"peers": ("a,b", "c")}, ()),
        (["-percentile=0.5,0.99", "-percentile=0.75"], {"percentiles": (0.99, 0.75, 0.5)}, ()),
        (["-slow"], {"slow": True}, ()),
        (["-slow=T", "--fast=0"], {"slow": True, "fast": False}, ()),
        (["-tls"], {"tls": 1}, ()),
        (["-tls=tcp-https"], {"tls": 2}, ()),
        (["-log-level", "Error"], {"log_level": 4}, ()),
        # Flags end at the first word that is none; the words behind it are not examined.
        (["-slow", "false", "-size=7"], {"slow": True}, ("false", "-size=7")),
        (["-tls", "true", "-bogus"], {"tls": 1}, ("true", "-bogus")),
        (["extra", "-bogus"], {}, ("extra", "-bogus")),
        (["-size=7", "--", "-size=8"], {"size": 7}, ("-size=8",)),
        (["-", "-bogus"], {}, ("-", "-bogus")),
        (["", "-bogus"], {}, ("", "-bogus")),
    ],
)
def test_a_command_line_gives_values(words, given, rest):
    assert parse(TABLE, words) == Arguments(given, rest)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["-bogus"], "flag provided but not defined: -bogus"),
        (["--bogus=1"], "flag provided but not defined: -bogus"),
        (["-Size=1"], "flag provided but not defined: -Size"),
        (["-siz=1"], "flag provided but not defined: -siz"),
        (["---x"], "bad flag syntax: ---x"),
        (["-=x"], "bad flag syntax: -=x"),
        (["--=x"], "bad flag syntax: --=x"),
        (["-size"], "flag needs an argument: -size"),
        (["-slow", "--name"], "flag needs an argument: -name"),
        (["-size=abc"], 'invalid value "abc" for flag -size: parse error'),
        (["-size="], 'invalid value "" for flag -size: parse error'),
        (["-size=9223372036854775808"], 'invalid value "9223372036854775808" for flag -size: value out of range'),
        (["-size=1", "-size=x"], 'invalid value "x" for flag -size: parse error'),
        (["-size", 'a"\n\udcff\u00e9'], 'invalid value "a\\"\\n\\xff\u00e9" for flag -size: parse error'),
        (["-wait=5"], 'invalid value "5" for flag -wait: parse error'),
        (["-slow=maybe"], 'invalid boolean value "maybe" for -slow: parse error'),
        (["-slow="], 'invalid boolean value "" for -slow: parse error'),
        (
            ["-tls=Maybe"],
            'invalid boolean value "Maybe" for -tls: strconv.ParseBool: parsing "maybe": invalid syntax',
        ),
        (
            ["-log-level=loud"],
            "invalid value \"loud\" for flag -log-level: invalid log level 'loud' (debug, info, warn, error, fatal)",
        ),
    ],
)
def test_a_wrong_command_line_is_refused_in_go_s_words(words, text):
    with pytest.raises(FlagError) as caught:
        parse(TABLE, words)
    assert str(caught.value) == text


@pytest.mark.parametrize("words", [["-h"], ["--h"], ["-help"], ["--help"], ["-h=1"], ["-slow", "-h", "-bogus"]])
def test_help_is_asked_for_by_two_names(words):
    with pytest.raises(HelpRequested):
        parse(TABLE, words)


USAGE = """\
Usage of prog:
  -empty file
    \tpath of a file to read
  -fast
    \thurry (default true)
  -log-level value
    \twhat to log (default INFO)
  -n int
    \tanother letter
  -name string
    \twhat to call it (default "a b")
  -peer value
    \tone of the others
  -percentile value
    \twhich ones
  -size int
    \thow many (default 5)
  -slow
    \tdo not hurry
    \tat all
  -tls
    \tbe careful
  -wait duration
    \thow long (default 1m0s)
  -x\tone letter
"""


def test_the_usage_text_has_go_s_layout():
    assert usage("prog", TABLE) == USAGE


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["-h"], 0, USAGE),
        (["-bogus"], 2, "flag provided but not defined: -bogus\n" + USAGE),
        (["-size=x"], 2, 'invalid value "x" for flag -size: parse error\n' + USAGE),
    ],
)
def test_help_and_errors_go_to_stderr_and_end_the_program(capfd, words, code, text):
    with pytest.raises(SystemExit) as caught:
        parse_arguments("prog", TABLE, words)
    assert caught.value.code == code
    assert capfd.readouterr() == ("", text)


def test_a_wrong_percentile_ends_the_program_with_a_dated_line_instead(capfd):
    with pytest.raises(SystemExit) as caught:
        parse_arguments("prog", TABLE, ["-percentile=0.5,abc"])
    assert caught.value.code == 1
    out, err = capfd.readouterr()
    assert out == ""
    assert re.fullmatch(r"\d{4}/\d\d/\d\d \d\d:\d\d:\d\d Could not parse: abc\n", err)


def test_an_error_has_its_exit_code_even_when_stderr_is_not_read():
    reader, writer = os.pipe()
    os.close(reader)
    program = "from nsq_compat.cli.flags import parse_arguments; parse_arguments('prog', (), ['-bogus'])"
    try:
        assert subprocess.run([sys.executable, "-c", program], stderr=writer).returncode == 2
    finally:
        os.close(writer)


words = st.one_of(
    st.text(max_size=8),
    st.builds(
        "{}{}{}{}".format,
        st.sampled_from(["-", "--", "---"]),
        st.sampled_from([row.flag for row in TABLE] + ["h", "bogus"]),
        st.sampled_from(["", "="]),
        st.sampled_from(["", "1", "true", "0x1", "5s", "warn", "0.5", "a,b"]) | st.text(max_size=4),
    ),
)


@given(st.lists(words, max_size=5))
def test_any_command_line_gives_values_of_the_right_types_or_one_of_three_answers(command_line):
    try:
        arguments = parse(TABLE, command_line)
    except (FlagError, HelpRequested, OptionError):
        return
    defaults = {row.key: row.default for row in TABLE}
    assert all(type(value) is type(defaults[key]) for key, value in arguments.given.items())
    Options(**arguments.given)


def test_the_page_in_the_documentation_is_what_the_tables_say():
    root = Path(__file__).parents[2]
    script = root / "scripts" / "flags-doc"
    environment = {**os.environ, "PYTHON": sys.executable}
    page = subprocess.run([script], env=environment, capture_output=True, text=True, check=True, timeout=50).stdout
    assert (root / "docs" / "flags.md").read_text() == page, "run scripts/flags-doc >docs/flags.md"


# --- The table --------------------------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class Rows:
    version: bool = option(BOOLEAN, False, "print the version", flag="version", in_file=False)
    msg_timeout: int = option(DURATION, MINUTE, "how long to wait", flag="msg-timeout")
    peers: tuple[str, ...] = option(STRINGS, (), "others", flag="peer")
    host: str = option(STRING, lambda: "here", "where", flag="host")
    not_an_option: int = 3


def test_a_row_is_made_of_the_field_and_its_metadata():
    assert table_of(Rows)[1] == Option(
        flag="msg-timeout",
        key="msg_timeout",
        kind=DURATION,
        default=MINUTE,
        help="how long to wait",
        in_file=True,
        follows_machine=False,
    )


def test_rows_keep_the_order_of_declaration_without_plain_fields():
    assert [row.key for row in table_of(Rows)] == ["version", "msg_timeout", "peers", "host"]


def test_options_made_without_arguments_hold_the_defaults_of_the_table():
    options = Rows()
    assert all(getattr(options, row.key) == row.default for row in table_of(Rows))


def test_a_callable_default_is_called_for_each_options_object():
    assert Rows().host == "here"
    assert table_of(Rows)[3].default == "here"
    assert table_of(Rows)[3].follows_machine


def test_an_option_can_be_looked_up_by_its_config_key():
    options = Rows(peers=("a", "b"))
    assert option_value(options, "msg_timeout") == MINUTE
    assert option_value(options, "peers") == ["a", "b"]


@pytest.mark.parametrize("key", ["version", "peer", "msg-timeout", "not_an_option", "", "__class__"])
def test_an_option_that_is_only_a_flag_cannot_be_looked_up(key):
    with pytest.raises(KeyError):
        option_value(Rows(), key)


@dataclass(slots=True, kw_only=True)
class Secrets:
    password: str = option(STRING, "", "what to say", secret=hidden)
    peers: tuple[str, ...] = option(STRINGS, (), "one of the others", flag="peer", secret=without_secrets)
    quick: bool = option(BOOLEAN, False, "hurry")


def values_of(*words: str) -> dict[str, Any]:
    return dict(parse_arguments("prog", table_of(Secrets), words).given)


def test_a_secret_is_not_shown():
    options = Secrets(password="opensesame", peers=("http://me:pw@host/a?key=pw", "plain:1"))
    assert option_value(options, "peers") == ["http://host/a", "plain:1"]
    assert option_value(options, "password") == "***"
    assert option_value(Secrets(), "password") == ""
    assert repr(options) == "Secrets(quick=False)"
    with pytest.raises(KeyError):
        option_value(options, "password_file")


def test_a_secret_comes_from_a_file_or_the_environment(tmp_path, monkeypatch):
    path = tmp_path / "secret"
    path.write_text("from a file\r\n")
    monkeypatch.setenv("PROG_PASSWORD", "from the environment")
    assert values_of() == {"password": "from the environment"}
    assert values_of("--password=given") == {"password": "given"}
    assert values_of(f"--password-file={path}") == {"password": "from a file"}


def test_values_of_a_repeated_flag_are_collected(tmp_path, monkeypatch):
    path = tmp_path / "peers"
    path.write_text("c:1\n\nd:1\n")
    monkeypatch.setenv("PROG_PEER", "e:1\nf:1")
    words = ("--peer=a:1", f"--peer-file={path}", "--peer=b:1")
    assert values_of(*words) == {"peers": ("a:1", "b:1", "c:1", "d:1", "e:1", "f:1")}


@pytest.mark.parametrize(
    ("content", "words", "error"),
    [
        (b"pw", ("--password=pw",), "use --password or --password-file, not both"),
        (b"\xff", (), "cannot read --password-file: open PATH: not UTF-8"),
        (None, (), "cannot read --password-file: open PATH: no such file or directory"),
    ],
)
def test_a_file_without_a_secret_ends_the_program(tmp_path, capfd, content, words, error):
    path = tmp_path / "secret"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SystemExit) as ended:
        values_of(f"--password-file={path}", *words)
    assert ended.value.code == 1
    assert error.replace("PATH", str(path)) in capfd.readouterr().err


def test_secrets_on_the_command_line_are_replaced_there(monkeypatch):
    words = ["--password", "pw1", "-quick", "--peer=u:pw2@h:1/a", "--peer=plain:1", "-password=pw3", "pw4"]
    monkeypatch.setattr(sys, "argv", ["prog", *words])
    arguments = parse_arguments("prog", table_of(Secrets), words)
    assert sys.argv == ["prog", "--password", "***", "-quick", "--peer=h:1/a", "--peer=plain:1", "-password=***", "pw4"]
    assert arguments.visible_secrets == ("password", "peer")
    assert (arguments.given["password"], arguments.given["peers"]) == ("pw3", ("u:pw2@h:1/a", "plain:1"))


def test_an_error_text_has_no_secret():
    with pytest.raises(FlagError, match=r"^bad flag syntax: ---password=$"):
        parse(table_of(Secrets), ["---password=pw"])
