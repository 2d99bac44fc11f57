from dataclasses import dataclass

import pytest

from nsq_compat.cli.kinds import BOOLEAN, DURATION, STRING, STRINGS
from nsq_compat.cli.options import Option, option, option_value, table_of
from nsq_compat.protocol.durations import MINUTE


@dataclass(slots=True, kw_only=True)
class Options:
    version: bool = option("version", BOOLEAN, False, "print the version", in_file=False)
    msg_timeout: int = option("msg-timeout", DURATION, MINUTE, "how long to wait")
    peers: tuple[str, ...] = option("peer", STRINGS, (), "others")
    host: str = option("host", STRING, lambda: "here", "where")
    not_an_option: int = 3


def test_a_row_is_made_of_the_field_and_its_metadata():
    assert table_of(Options)[1] == Option(
        flag="msg-timeout",
        key="msg_timeout",
        kind=DURATION,
        default=MINUTE,
        help="how long to wait",
        in_file=True,
        follows_machine=False,
    )


def test_rows_keep_the_order_of_declaration_without_plain_fields():
    assert [row.key for row in table_of(Options)] == ["version", "msg_timeout", "peers", "host"]


def test_options_made_without_arguments_hold_the_defaults_of_the_table():
    options = Options()
    assert all(getattr(options, row.key) == row.default for row in table_of(Options))


def test_a_callable_default_is_called_for_each_options_object():
    assert Options().host == "here"
    assert table_of(Options)[3].default == "here"
    assert table_of(Options)[3].follows_machine


def test_an_option_can_be_looked_up_by_its_config_key():
    options = Options(peers=("a", "b"))
    assert option_value(options, "msg_timeout") == MINUTE
    assert option_value(options, "peers") == ["a", "b"]


@pytest.mark.parametrize("key", ["version", "peer", "msg-timeout", "not_an_option", "", "__class__"])
def test_an_option_that_is_only_a_flag_cannot_be_looked_up(key):
    with pytest.raises(KeyError):
        option_value(Options(), key)


def test_an_address_is_shown_without_its_password():
    options = Options(peers=("http://me:pw@host/a?key=pw", "plain:1"), host="http://me:pw@host")
    assert option_value(options, "peers") == ["http://host/a", "plain:1"]
    assert option_value(options, "host") == "http://host"
