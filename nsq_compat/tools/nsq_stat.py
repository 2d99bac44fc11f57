"""``nsq_stat``: the statistics of a channel over all its nodes, a row for each interval.

Unlike Go's: a node that stops answering is reported on stderr and counted with its last values, instead of ending
the program; a new node does not look like a burst of messages; the program ends after the last row of ``--count``. A
node that has lost its standby is reported on stderr.
"""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from nsq_compat.cli.kinds import DURATION, INTEGER, STRING
from nsq_compat.cli.options import option
from nsq_compat.cluster.cluster import Cluster
from nsq_compat.cluster.http_client import AllFailed, named
from nsq_compat.cluster.mirroring import Standby
from nsq_compat.cluster.stats import ChannelStats, sum_channel
from nsq_compat.protocol.durations import SECOND, seconds
from nsq_compat.protocol.names import is_valid_name
from nsq_compat.tools.client_options import ClusterOptions, Unreachable, producers_of
from nsq_compat.tools.program import Refused, Stopping, console_script, refuse, say, unless_positive

_ENDLESS: Final = -1
_ROWS_UNDER_A_HEADER: Final = 25
_HEADER: Final = """\
------rate------+----------------depth----------------+--------------metadata---------------
ingress  egress |   total     mem    disk inflt   def |     req     t-o         msgs clients"""
_ROW: Final = "%7d %7d | %7d %7d %7d %5d %5d | %7d %7d %12d %7d"


@dataclass(kw_only=True)
class Options(ClusterOptions):
    program = "nsq_stat"
    topic: str = option(STRING, "", "topic of the channel")
    channel: str = option(STRING, "", "channel to show")
    interval: int = option(DURATION, 2 * SECOND, "time between two rows")
    count: int = option(INTEGER, _ENDLESS, "number of rows to print; by default no limit")
    http_client_connect_timeout: int = option(DURATION, 2 * SECOND, "time for connecting to a daemon")
    http_client_request_timeout: int = option(DURATION, 5 * SECOND, "time for a whole request to a daemon")


@console_script(Options)
def main(options: Options) -> None:
    named, lookupds = options.nsqd_http_addresses, options.nsqlookupd_http_addresses
    refuse(
        (not options.topic or not options.channel, "--topic and --channel are required"),
        (not is_valid_name(options.topic), "--topic is invalid"),
        (not is_valid_name(options.channel), "--channel is invalid"),
        *unless_positive(options, "interval", "http_client_connect_timeout", "http_client_request_timeout"),
        (options.count <= 0 and options.count != _ENDLESS, "--count should be positive"),
        *options.address_rules(),
        (any(map(_has_scheme, named)), "--nsqd-http-address error - address should not contain scheme"),
        (
            any(each.startswith("http://") for each in lookupds),
            "--lookupd-http-address error - address should not contain scheme",
        ),
    )
    stopping = Stopping()
    timeouts = seconds(options.http_client_connect_timeout), seconds(options.http_client_request_timeout)
    sampler = ChannelSampler(options.cluster(*timeouts), options.topic, options.channel)
    interval = seconds(options.interval)
    if (before := options.reached(sampler.sample, stopping)) is None:
        return
    for number in itertools.count() if options.count == _ENDLESS else range(options.count):
        if number % _ROWS_UNDER_A_HEADER == 0:
            print(_HEADER, flush=True)
        if stopping.wait(interval):
            return
        now = sampler.sample()
        print(row(before, now, interval), flush=True)
        before = now


def _has_scheme(address: str) -> bool:
    return address.startswith(("http://", "https://"))


Sample = Mapping[str, ChannelStats]
"""The channel on each node, by the node's HTTP address."""


@dataclass
class ChannelSampler:
    """Requests the statistics of a channel. A node that does not answer keeps its last values."""

    cluster: Cluster
    topic: str
    channel: str
    _seen: dict[str, ChannelStats] = field(default_factory=dict, init=False)
    _not_mirrored: set[str] = field(default_factory=set, init=False)  # nodes that were reported

    def sample(self) -> Sample:
        """Raises ``Refused`` when the first sample fails, and when no node has the channel any more."""
        try:
            self._update()
        except (Unreachable, AllFailed) as error:
            text = error.named if isinstance(error, AllFailed) else str(error)
            if not self._seen:
                raise Unreachable(f"ERROR: failed to get nsqd stats - {text}") from error
            say(f"WARNING: {text}")
        if not self._seen:
            raise Refused(f"ERROR: failed to find channel({self.channel}) in stats metadata for topic({self.topic})")
        return dict(self._seen)

    def _update(self) -> None:
        producers = producers_of(self.cluster, self.topic, all_named=not self._seen)
        if not producers.value and not self._seen:
            unsure = "".join(f"; {error}" for error in producers.errors)
            raise Refused(f"ERROR: topic {self.topic} is unknown: no nsqd has it{unsure}")
        statistics = self.cluster.stats(producers.value, self.topic, self.channel)
        for error in (*producers.errors, *(f"nsqd {named(each)}" for each in statistics.errors)):
            say(f"WARNING: {error}")
        if not producers.errors:  # otherwise a missing node may only not have been found
            for gone in self._seen.keys() - {node.http_address for node in producers.value}:
                del self._seen[gone]
        for node, stats in statistics.value:
            channels = [each for topic in stats.topics for each in topic.channels if each.channel_name == self.channel]
            self._seen.pop(node.http_address, None)
            self._seen.update((node.http_address, each) for each in channels)
            self._report_mirroring(node.http_address, stats.mirroring.standby)

    def _report_mirroring(self, node: str, standby: Standby | None) -> None:
        """Say once that the messages of a node are on one machine only, and once that they are mirrored again."""
        if standby is not None and not standby.is_in_sync:
            if node not in self._not_mirrored:
                self._not_mirrored.add(node)
                why = f": {standby.failure}" if standby.failure else ""
                say(f"WARNING: nsqd {node} is not mirrored, {standby.state} for {standby.seconds:.0f} s{why}")
        elif node in self._not_mirrored:
            self._not_mirrored.discard(node)
            say(f"nsqd {node} is mirrored again" if standby is not None else f"nsqd {node} has no standby any more")


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
