"""nsqlookupd's options are NSQ's."""

import os

import pytest

from nsq_compat.cli.flags import parse, usage
from nsq_compat.cli.kinds import OptionError
from nsq_compat.cli.options import table_of
from nsq_compat.nsqlookupd.main import NsqlookupdOptions, validate
from nsq_compat.protocol.durations import SECOND

NSQ_FLAGS = {
    # flag: (type in the usage text, default there)
    "broadcast-address": ("string", f'"{os.uname().nodename}"'),
    "config": ("string", ""),
    "http-address": ("string", '"0.0.0.0:4161"'),
    "inactive-producer-timeout": ("duration", "5m0s"),
    "log-level": ("value", "INFO"),
    "log-prefix": ("string", '"[nsqlookupd] "'),
    "tcp-address": ("string", '"0.0.0.0:4160"'),
    "tombstone-lifetime": ("duration", "45s"),
    "verbose": ("", ""),
    "version": ("", ""),
}


OURS = {"check-config", "log-format"}


def test_flags_types_and_defaults_are_nsqs():
    lines = usage("nsqlookupd", table_of(NsqlookupdOptions)).splitlines()[1:]
    shown = {}
    for head, text in zip(lines[::2], lines[1::2], strict=True):
        flag, _, kind = head.strip().removeprefix("-").partition(" ")
        _, marked, default = text.partition(" (default ")
        shown[flag] = (kind, default.removesuffix(")") if marked else "")
    assert {flag: row for flag, row in shown.items() if flag not in OURS} == NSQ_FLAGS


def test_config_keys_are_the_flags_with_underscores():
    for row in table_of(NsqlookupdOptions):
        assert row.key == row.flag.replace("-", "_")


def test_durations_are_read_in_gos_syntax():
    given = parse(
        table_of(NsqlookupdOptions), ["--tombstone-lifetime=1m30s", "-inactive-producer-timeout", "500ms"]
    ).given
    assert NsqlookupdOptions(**given).tombstone_lifetime == 90 * SECOND
    assert NsqlookupdOptions(**given).inactive_producer_timeout == SECOND // 2


@pytest.mark.parametrize("address", ["127.0.0.1:0", ":4160", "", "[::1]:4160"])
def test_addresses_have_a_port_or_are_left_open(address):
    validate(NsqlookupdOptions(tcp_address=address, http_address=address))


@pytest.mark.parametrize("options", [{"tcp_address": "/run/nsq.sock"}, {"http_address": "localhost"}])
def test_an_address_without_a_port_is_refused(options):
    with pytest.raises(OptionError, match=r"listen \(.*\) failed - missing port in address"):
        validate(NsqlookupdOptions(**options))
