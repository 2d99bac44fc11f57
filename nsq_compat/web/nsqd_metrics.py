"""nsqd's figures for Prometheus: those of /stats, topic by topic and channel by channel, and the daemon's own.

Invariant: however many topics and channels there are, no more than `most_names` of them have series of their own, and
ephemeral ones, whose names come and go, never have. What has none is added up under names no topic can have; but only
gauges are, because a sum of counters would go back whenever one of them is deleted.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Final, Generic, NamedTuple, TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from nsq_compat.protocol.names import is_ephemeral
from nsq_compat.queue.broker import snapshot
from nsq_compat.queue.stats import ChannelStats, TopicStats
from nsq_compat.web.nsqd_service import NsqdService
from nsq_compat.web.statistics import HEALTHY, unhurried

OTHERS: Final = "(others)"
"""In place of the names of those without series of their own."""
_ROWS_AT_ONCE: Final = 50
_NANOSECONDS: Final = 1e9

S = TypeVar("S", TopicStats, ChannelStats)
Labels = tuple[str, ...]


class Figure(NamedTuple, Generic[S]):
    """One column of a table whose rows are topics, or channels."""

    name: str
    help: str
    value: Callable[[S], float]
    is_counter: bool = False


_TOPIC: Final[Sequence[Figure[TopicStats]]] = (
    Figure("nsqd_topic_depth", "Messages no channel has got yet.", lambda topic: topic.depth),
    Figure(
        "nsqd_topic_backend_depth",
        "Those of them that mem-queue-size has no room for.",
        lambda topic: topic.backend_depth,
    ),
    Figure("nsqd_topic_log_bytes", "Size of the topic's log on disk.", lambda topic: topic.log_bytes),
    Figure("nsqd_topic_paused", "1 while the topic is paused.", lambda topic: topic.paused),
    Figure("nsqd_topic_messages", "Messages published.", lambda topic: topic.message_count, is_counter=True),
    Figure("nsqd_topic_message_bytes", "Their bodies' size.", lambda topic: topic.message_bytes, is_counter=True),
    Figure("nsqd_topic_dropped", "Messages dropped.", lambda topic: topic.dropped_count, is_counter=True),
    Figure("nsqd_topic_rejected", "Messages refused: bounded.", lambda topic: topic.rejected_count, is_counter=True),
    Figure("nsqd_topic_damaged_records", "Records of the log that were damaged.", lambda topic: topic.damaged_records),
)

_CHANNEL: Final[Sequence[Figure[ChannelStats]]] = (
    Figure("nsqd_channel_depth", "Messages that wait for a consumer.", lambda channel: channel.depth),
    Figure(
        "nsqd_channel_backend_depth", "Those of them that mem-queue-size has no room for.", lambda it: it.backend_depth
    ),
    Figure("nsqd_channel_in_flight", "Messages consumers have and did not answer.", lambda it: it.in_flight_count),
    Figure("nsqd_channel_deferred", "Messages whose time has not come.", lambda channel: channel.deferred_count),
    Figure("nsqd_channel_consumers", "Consumers.", lambda channel: channel.client_count),
    Figure("nsqd_channel_ready", "The consumers' RDY, added up.", lambda channel: _ready(channel)),
    Figure("nsqd_channel_paused", "1 while the channel is paused.", lambda channel: channel.paused),
    Figure("nsqd_channel_messages", "Messages put in.", lambda channel: channel.message_count, is_counter=True),
    Figure("nsqd_channel_requeues", "Messages requeued.", lambda channel: channel.requeue_count, is_counter=True),
    Figure("nsqd_channel_timeouts", "Messages timed out.", lambda channel: channel.timeout_count, is_counter=True),
    Figure("nsqd_channel_dropped", "Messages dropped.", lambda channel: channel.dropped_count, is_counter=True),
    Figure("nsqd_channel_dead_letters", "Messages dead-lettered.", lambda it: it.dead_letter_count, is_counter=True),
    Figure("nsqd_channel_rejected", "Messages refused: bounded.", lambda it: it.rejected_count, is_counter=True),
)


class Table(Generic[S]):
    """Rows that have series of their own, and the sums of all others."""

    def __init__(self, figures: Sequence[Figure[S]], label_names: Sequence[str]) -> None:
        self._figures: Sequence[Figure[S]] = figures
        self._label_names = label_names
        self._rows: list[tuple[Labels, tuple[float, ...]]] = []
        self._others = [0.0] * len(figures)
        self.other_count = 0

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, labels: Labels, stats: S) -> None:
        self._rows.append((labels, self._values(stats)))

    def add_to_others(self, stats: S) -> None:
        self.other_count += 1
        self._others = [sum(pair) for pair in zip(self._others, self._values(stats), strict=True)]

    def families(self) -> Iterator[Metric]:
        for column, figure in enumerate(self._figures):
            kind = CounterMetricFamily if figure.is_counter else GaugeMetricFamily
            family = kind(figure.name, figure.help, labels=self._label_names)
            for labels, values in self._rows:
                family.add_metric(labels, values[column])
            if self.other_count and not figure.is_counter:
                family.add_metric((OTHERS,) * len(self._label_names), self._others[column])
            yield family

    def _values(self, stats: S) -> tuple[float, ...]:
        return tuple(float(figure.value(stats)) for figure in self._figures)


class NsqdCollector(Collector):
    """Asked for every scrape."""

    def __init__(self, service: NsqdService, most_names: int) -> None:
        self._service = service
        self._most_names = most_names

    def collect(self) -> Iterable[Metric]:
        service = self._service
        topics, channels = Table(_TOPIC, ("topic",)), Table(_CHANNEL, ("topic", "channel"))
        latency = GaugeMetricFamily(
            "nsqd_channel_e2e_latency_seconds",
            "From publish to FIN, over the last while: --e2e-processing-latency-percentile.",
            labels=("topic", "channel", "quantile"),
        )
        for topic in unhurried(snapshot(service.broker, service.now()), service.let_others_run):
            fits = len(topics) + len(channels) + 1 + len(topic.channels) <= self._most_names
            has_series = fits and not is_ephemeral(topic.topic_name)
            if has_series:
                topics.add((topic.topic_name,), topic)
            else:
                topics.add_to_others(topic)
            for channel in topic.channels:
                labels = (topic.topic_name, channel.channel_name)
                if has_series and not is_ephemeral(channel.channel_name):
                    channels.add(labels, channel)
                    for quantile, value in channel.e2e_processing_latency.percentiles or ():
                        latency.add_metric((*labels, f"{quantile:g}"), value / _NANOSECONDS)
                else:
                    channels.add_to_others(channel)
        yield from self._of_the_daemon(topics, channels)
        for family in chain(topics.families(), channels.families(), (latency,)):
            family.samples = _Unhurried(family.samples, service.let_others_run)
            yield family

    def _of_the_daemon(self, topics: Table[TopicStats], channels: Table[ChannelStats]) -> Iterator[Metric]:
        service = self._service
        for name, help, value in (
            ("nsqd_healthy", "1 as long as the data path can be written and read.", service.health() == HEALTHY),
            ("nsqd_draining", "1 while it gives away what it has before it stops.", service.draining),
            ("nsqd_connections", "TCP clients.", service.connection_count()),
            ("nsqd_topics", "Topics.", len(topics) + topics.other_count),
            ("nsqd_channels", "Channels.", len(channels) + channels.other_count),
            ("nsqd_topics_without_series", "Those in (others).", topics.other_count),
            ("nsqd_channels_without_series", "Those in (others).", channels.other_count),
        ):
            yield GaugeMetricFamily(name, help, value=float(value))
        yield CounterMetricFamily(
            "nsqd_read_errors", "Reads of the log that failed.", value=float(service.read_errors())
        )


class _Unhurried(list[Sample]):
    """The samples of a family; others run before every 50 of them, because each takes 10 us to be written."""

    def __init__(self, samples: Iterable[Sample], let_others_run: Callable[[], None]) -> None:
        super().__init__(samples)
        self._let_others_run = let_others_run

    def __iter__(self) -> Iterator[Sample]:
        for number, sample in enumerate(super().__iter__()):
            if number % _ROWS_AT_ONCE == _ROWS_AT_ONCE - 1:
                self._let_others_run()
            yield sample


def _ready(channel: ChannelStats) -> int:
    return sum(client.ready_count for client in channel.clients or ())
