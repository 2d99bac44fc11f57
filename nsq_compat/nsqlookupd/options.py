"""nsqlookupd's options. Names, types and defaults are NSQ's, so that command lines and config files keep working.

The dataclass is the table (see `nsq_compat.cli.options`): attributes have the names of config keys, durations are in
integer nanoseconds.
"""

import os
from dataclasses import dataclass
from typing import Final

from nsq_compat.cli.kinds import BOOLEAN, DURATION, LOG_LEVEL, STRING, OptionError, choice
from nsq_compat.cli.logs import FORMATS, INFO, TEXT
from nsq_compat.cli.options import option
from nsq_compat.net.sockets import split_host_port
from nsq_compat.protocol.durations import MINUTE, SECOND

PROGRAM: Final = "nsqlookupd"


def hostname() -> str:
    """The name of this machine, the default of --broadcast-address."""
    return os.uname().nodename


@dataclass(slots=True, kw_only=True)
class NsqlookupdOptions:
    """The options of one nsqlookupd; `NsqlookupdOptions()` are the defaults."""

    version: bool = option("version", BOOLEAN, False, "print the version and exit", in_file=False)
    config: str = option("config", STRING, "", "TOML file with more options; flags override it", in_file=False)
    check_config: bool = option(
        "check-config", BOOLEAN, False, "check options, config file and the files they name, and exit", in_file=False
    )

    log_level: int = option(
        "log-level", LOG_LEVEL, INFO, "least severe messages to log: debug, info, warn, error or fatal"
    )
    log_format: str = option("log-format", choice(*FORMATS), TEXT, "format of log lines: text, like NSQ's, or json")
    log_prefix: str = option("log-prefix", STRING, "[nsqlookupd] ", "text at the start of every log line")
    verbose: bool = option("verbose", BOOLEAN, False, "deprecated and ignored: use --log-level", in_file=False)

    tcp_address: str = option("tcp-address", STRING, "0.0.0.0:4160", "where nsqd daemons connect: host:port")
    http_address: str = option("http-address", STRING, "0.0.0.0:4161", "where HTTP clients connect: host:port")
    broadcast_address: str = option(
        "broadcast-address",
        STRING,
        hostname,
        "host under which nsqd reaches this nsqlookupd; by default the host name",
    )

    inactive_producer_timeout: int = option(
        "inactive-producer-timeout",
        DURATION,
        5 * MINUTE,
        "how long an nsqd may be silent before consumers are no longer sent to it",
    )
    tombstone_lifetime: int = option(
        "tombstone-lifetime", DURATION, 45 * SECOND, "how long a tombstone keeps consumers from a topic's producer"
    )


def validate(options: NsqlookupdOptions) -> None:
    """Raise OptionError for values with which NSQ refuses to start."""
    for address in (options.tcp_address, options.http_address):
        # nsqlookupd: no unix sockets; an empty address is any port.
        if address and split_host_port(address) is None:
            raise OptionError(f"listen ({address}) failed - missing port in address")
