import re
from dataclasses import dataclass

import pytest

from nsq_compat.cli.kinds import BOOLEAN, INTEGER, STRING
from nsq_compat.cli.lifecycle import exit_checked, exit_fatal, read_options
from nsq_compat.cli.options import option

FATAL_LINE = r"\[prog\] \d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{6} FATAL: "


@dataclass(slots=True, kw_only=True)
class Options:
    version: bool = option("version", BOOLEAN, False, "print the version", in_file=False)
    config: str = option("config", STRING, "", "file", in_file=False)
    size: int = option("size", INTEGER, 5, "how many")
    name: str = option("name", STRING, "x", "what")


def read(*words):
    return read_options("prog", Options, words, "prog v1")


@pytest.fixture
def config_file(tmp_path):
    path = tmp_path / "prog.cfg"
    path.write_text('size = 6\nname = "file"\n')
    return path


def test_without_words_options_are_the_defaults():
    assert read() == Options()


def test_a_flag_wins_over_the_file_and_the_file_over_the_default(config_file):
    assert read(f"-config={config_file}", "-size=7") == Options(config=str(config_file), size=7, name="file")


def test_version_is_printed_on_stdout_and_wins_over_a_wrong_config_file(capfd):
    with pytest.raises(SystemExit) as caught:
        read("-version", "-config=/nowhere/at/all")
    assert caught.value.code == 0
    assert capfd.readouterr() == ("prog v1\n", "")


def test_version_does_not_win_over_a_wrong_flag(capfd):
    with pytest.raises(SystemExit) as caught:
        read("-version", "-bogus")
    assert caught.value.code == 2
    assert capfd.readouterr().err.startswith("flag provided but not defined: -bogus\nUsage of prog:\n")


def test_version_can_be_taken_back():
    assert read("-version", "-version=false").version is False


def test_a_wrong_config_file_is_a_fatal_line_with_the_default_prefix(capfd, tmp_path):
    with pytest.raises(SystemExit) as caught:
        read(f"-config={tmp_path}/none")
    assert caught.value.code == 1
    reason = f"failed to load config file {tmp_path}/none - open {tmp_path}/none: no such file or directory"
    assert re.fullmatch(FATAL_LINE + re.escape(reason) + "\n", capfd.readouterr().err)


def test_what_was_checked_and_found_good_is_said_on_stdout(capfd):
    with pytest.raises(SystemExit) as caught:
        exit_checked("prog")
    assert caught.value.code == 0
    assert capfd.readouterr() == ("prog: configuration OK\n", "")


def test_a_fatal_line_is_one_line(capfd):
    with pytest.raises(SystemExit) as caught:
        exit_fatal("prog", "bad\n[prog] news")
    assert caught.value.code == 1
    assert re.fullmatch(FATAL_LINE + r"bad\\n\[prog\] news\n", capfd.readouterr().err)
