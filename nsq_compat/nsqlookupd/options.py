"""nsqlookupd's options. Names, types and defaults are NSQ's, so that command lines and config files keep working.

The dataclass is the table (see `nsq_compat.cli.options`): attributes have the names of config keys, durations are in
integer nanoseconds.
"""

from dataclasses import dataclass
from typing import Final

from nsq_compat.cli.kinds import DURATION, STRING, OptionError
from nsq_compat.cli.options import DaemonOptions, hostname, option
from nsq_compat.net.listeners import split_host_port
from nsq_compat.protocol.durations import MINUTE, SECOND

PROGRAM: Final = "nsqlookupd"


@dataclass(slots=True, kw_only=True)
class NsqlookupdOptions(DaemonOptions):
    """The options of one nsqlookupd; `NsqlookupdOptions()` are the defaults."""

    log_prefix: str = option(STRING, "[nsqlookupd] ", "text at the start of every log line")
    tcp_address: str = option(STRING, "0.0.0.0:4160", "where nsqd daemons connect: host:port")
    http_address: str = option(STRING, "0.0.0.0:4161", "where HTTP clients connect: host:port")
    broadcast_address: str = option(
        STRING, hostname, "host under which nsqd reaches this nsqlookupd; by default the host name"
    )

    inactive_producer_timeout: int = option(
        DURATION, 5 * MINUTE, "how long an nsqd may be silent before consumers are no longer sent to it"
    )
    tombstone_lifetime: int = option(
        DURATION, 45 * SECOND, "how long a tombstone keeps consumers from a topic's producer"
    )


def validate(options: NsqlookupdOptions) -> None:
    """Raise OptionError for values with which NSQ refuses to start."""
    for address in (options.tcp_address, options.http_address):
        # nsqlookupd: no unix sockets; an empty address is any port.
        if address and split_host_port(address) is None:
            raise OptionError(f"listen ({address}) failed - missing port in address")
