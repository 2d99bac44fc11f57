import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

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


def test_an_address_is_shown_without_its_password():
    options = Rows(peers=("http://me:pw@host/a?key=pw", "plain:1"), host="http://me:pw@host")
    assert option_value(options, "peers") == ["http://host/a", "plain:1"]
    assert option_value(options, "host") == "http://host"
