"""``nsq_stat``: the statistics of a channel over all its nodes, a row for each interval.

Better than Go's: a node that does not answer is reported on stderr and counted with its last values, instead of ending
the program; a new node does not look like a burst of messages; the program ends after the last row of ``--count``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from nsq_compat.cli.kinds import BOOLEAN, DURATION, INTEGER, STRING, STRINGS
from nsq_compat.cli.options import option
from nsq_compat.cluster.cluster import Cluster
from nsq_compat.cluster.http_client import AllFailed, HttpClient
from nsq_compat.cluster.stats import ChannelStats, sum_channel
from nsq_compat.protocol.durations import SECOND
from nsq_compat.tools.program import Refused, Stopping, one_kind_of_address, options_of, run, say

PROGRAM: Final = "nsq_stat"
_ENDLESS: Final = -1
_ROWS_UNDER_A_HEADER: Final = 25
_HEADER: Final = """\
------rate------+----------------depth----------------+--------------metadata---------------
ingress  egress |   total     mem    disk inflt   def |     req     t-o         msgs clients"""
_ROW: Final = "%7d %7d | %7d %7d %7d %5d %5d | %7d %7d %12d %7d"


@dataclass(slots=True, kw_only=True)
class Options:
    """Names and defaults are NSQ's."""

    version: bool = option("version", BOOLEAN, False, "print the version and exit")
    topic: str = option("topic", STRING, "", "topic of the channel")
    channel: str = option("channel", STRING, "", "channel to show")
    interval: int = option("interval", DURATION, 2 * SECOND, "time between two rows")
    count: int = option("count", INTEGER, _ENDLESS, "number of rows to print; by default no limit")
    http_client_connect_timeout: int = option(
        "http-client-connect-timeout", DURATION, 2 * SECOND, "time for connecting to a daemon"
    )
    http_client_request_timeout: int = option(
        "http-client-request-timeout", DURATION, 5 * SECOND, "time for a whole request to a daemon"
    )
    nsqd_http_addresses: tuple[str, ...] = option(
        "nsqd-http-address", STRINGS, (), "host:port of an nsqd (repeat for several)"
    )
    nsqlookupd_http_addresses: tuple[str, ...] = option(
        "lookupd-http-address", STRINGS, (), "host:port of an nsqlookupd (repeat for several)"
    )


def main() -> None:
    """The console script."""
    run(stat)


def stat(words: Sequence[str]) -> None:
    """Raises ``Refused``."""
    options = options_of(PROGRAM, Options, words)
    _check(options)
    stopping = Stopping()
    client = HttpClient(
        connect_timeout=options.http_client_connect_timeout / SECOND,
        request_timeout=options.http_client_request_timeout / SECOND,
    )
    cluster = Cluster(client, options.nsqlookupd_http_addresses, options.nsqd_http_addresses)
    sampler = ChannelSampler(cluster, options.topic, options.channel)
    interval = options.interval / SECOND
    before = sampler.sample()
    printed = 0
    while printed != options.count:
        if printed % _ROWS_UNDER_A_HEADER == 0:
            print(_HEADER, flush=True)
        if stopping.wait(interval):
            return
        now = sampler.sample()
        print(row(before, now, interval), flush=True)
        before = now
        printed += 1


def _check(options: Options) -> None:
    if not options.topic or not options.channel:
        raise Refused("--topic and --channel are required")
    for flag, value in (
        ("--interval", options.interval),
        ("--http-client-connect-timeout", options.http_client_connect_timeout),
        ("--http-client-request-timeout", options.http_client_request_timeout),
        ("--count", 1 if options.count == _ENDLESS else options.count),
    ):
        if value <= 0:
            raise Refused(f"{flag} should be positive")
    one_kind_of_address(options.nsqd_http_addresses, options.nsqlookupd_http_addresses, "--nsqd-http-address")
    for flag, addresses in (
        ("--nsqd-http-address", options.nsqd_http_addresses),
        ("--lookupd-http-address", options.nsqlookupd_http_addresses),
    ):
        if any(address.startswith(("http://", "https://")) for address in addresses):
            raise Refused(f"{flag} error - address should not contain scheme")


Sample = Mapping[str, ChannelStats]
"""The channel on each node, by the node's HTTP address."""


class ChannelSampler:
    """Requests the statistics of a channel. A node that does not answer keeps its last values."""

    def __init__(self, cluster: Cluster, topic: str, channel: str) -> None:
        self._cluster = cluster
        self._topic = topic
        self._channel = channel
        self._seen: dict[str, ChannelStats] = {}

    def sample(self) -> Sample:
        """Raises ``Refused`` if no node has ever answered, and when no node has the channel any more."""
        try:
            self._update()
        except AllFailed as error:
            if not self._seen:
                raise Refused(f"ERROR: failed to get nsqd stats - {error}") from error
            say(f"WARNING: {error}")
        if not self._seen:
            raise Refused(f"ERROR: failed to find channel({self._channel}) in stats metadata for topic({self._topic})")
        return dict(self._seen)

    def _update(self) -> None:
        producers = self._cluster.producers(self._topic)
        statistics = self._cluster.stats(producers.value, self._topic, self._channel)
        for error in (*producers.errors, *statistics.errors):
            say(f"WARNING: {error}")
        if not producers.errors:  # otherwise a missing node may only not have been found
            for gone in self._seen.keys() - {node.http_address for node in producers.value}:
                del self._seen[gone]
        for node, stats in statistics.value:
            channels = [each for topic in stats.topics for each in topic.channels if each.channel_name == self._channel]
            self._seen.pop(node.http_address, None)
            self._seen.update((node.http_address, each) for each in channels)


def row(before: Sample, now: Sample, interval: float) -> str:
    """Format a row; the rates are those of nodes in both samples."""
    then = sum_channel("", [before[address] for address in now if address in before])
    still = sum_channel("", [now[address] for address in now if address in before])
    total = sum_channel("", list(now.values()))
    published = still.message_count - then.message_count
    consumed = published - (still.depth - then.depth)
    return _ROW % (
        published / interval, consumed / interval,
        total.depth, total.memory_depth, total.backend_depth, total.in_flight_count, total.deferred_count,
        total.requeue_count, total.timeout_count, total.message_count, total.client_count,
    )  # fmt: skip


if __name__ == "__main__":
    main()
