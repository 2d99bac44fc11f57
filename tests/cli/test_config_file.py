from dataclasses import dataclass

import pytest

from nsq_compat.cli.config_file import load, merge
from nsq_compat.cli.errors import OptionError
from nsq_compat.cli.kinds import BOOLEAN, INTEGER, LOG_LEVEL, STRINGS, TLS_MIN_VERSION
from nsq_compat.cli.options import option, table_of


@dataclass(slots=True, kw_only=True)
class Options:
    version: bool = option("version", BOOLEAN, False, "", in_file=False)
    id: int = option("node-id", INTEGER, 1, "")
    fast: bool = option("fast", BOOLEAN, True, "")
    peers: tuple[str, ...] = option("peer", STRINGS, (), "")
    log_level: int = option("log-level", LOG_LEVEL, 2, "")
    tls_min_version: int = option("tls-min-version", TLS_MIN_VERSION, 769, "")


TABLE = table_of(Options)


@pytest.fixture
def config_file(tmp_path):
    path = tmp_path / "nsqd.cfg"

    def write(content):
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    return write


def reason_of(call, *arguments):
    with pytest.raises(OptionError) as caught:
        call(*arguments)
    return str(caught.value)


def test_a_file_is_toml(config_file):
    assert load(config_file('id = 5\npeers = ["a"]\n')) == {"id": 5, "peers": ["a"]}


def test_a_byte_order_mark_and_windows_line_ends_are_no_obstacle(config_file):
    assert load(config_file(b"\xef\xbb\xbfid = 5\r\nfast = true\r\n")) == {"id": 5, "fast": True}


def test_a_missing_file_is_reported_in_go_s_words(tmp_path):
    path = f"{tmp_path}/nsqd.cfg"
    assert reason_of(load, path) == f"failed to load config file {path} - open {path}: no such file or directory"


def test_a_folder_is_reported_in_go_s_words(tmp_path):
    assert reason_of(load, str(tmp_path)) == f"failed to load config file {tmp_path} - read {tmp_path}: is a directory"


@pytest.mark.parametrize(
    "content", [b"id", b"id =", b"id = 5\nid = 6", b"id = '\xff'", b"\xff\xfei\x00", b"id = " + b"9" * 5000, b"\0"]
)
def test_what_is_not_toml_is_refused_with_the_name_of_the_file(config_file, content):
    path = config_file(content)
    assert reason_of(load, path).startswith(f"failed to load config file {path} - ")


def test_deep_nesting_is_refused_like_any_other_mistake(config_file):
    path = config_file("a = " + "[" * 5000 + "]" * 5000)
    assert reason_of(load, path) == f"failed to load config file {path} - nested too deeply"


def test_the_file_fills_in_what_the_command_line_left_out():
    content = {"id": 5, "fast": False, "log_level": "debug"}
    assert merge(TABLE, {"id": 7}, "f", content) == {"id": 7, "fast": False, "log_level": 1}


def test_a_list_on_the_command_line_replaces_that_of_the_file():
    assert merge(TABLE, {"peers": ("x",)}, "f", {"peers": ["a", "b"]}) == {"peers": ("x",)}


@pytest.mark.parametrize("key", ["version", "node_id", "node-id", "ID", "peer", "bogus", "section"])
def test_unknown_keys_flag_spellings_and_sections_are_ignored(key):
    assert merge(TABLE, {}, "f", {key: {"id": 5}}) == {}


def test_a_wrong_value_is_named_with_its_file_and_key():
    reason = reason_of(merge, TABLE, {}, "f", {"id": "5k"})
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
    assert reason_of(merge, TABLE, {}, "f", content) == reason


def test_names_are_checked_first_and_even_when_a_flag_overrides_them():
    content = {"id": "x", "log_level": "loud"}
    assert reason_of(merge, TABLE, {"log_level": 1}, "f", content) == "failed parsing log_level loud"


def test_other_values_are_not_looked_at_when_a_flag_overrides_them():
    assert merge(TABLE, {"id": 7}, "f", {"id": "x"}) == {"id": 7}
