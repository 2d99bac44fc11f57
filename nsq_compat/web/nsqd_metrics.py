"""nsqd's metrics for Prometheus: those of /stats for each topic and channel, and those of the daemon.

Invariant: at most `metrics_max_names` topics and channels have series of their own. Ephemeral ones have none, because
their names come and go. The gauges of all others are added up under `OTHERS`, which is not a valid name. Their counters
are not, because the sum would decrease when a topic or channel is deleted.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Final, Generic, NamedTuple, TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.samples import Sample

from nsq_compat.protocol.names import is_ephemeral
from nsq_compat.queue.broker import snapshot
from nsq_compat.queue.values import ChannelStats, TopicStats
from nsq_compat.web.application import cooperatively
from nsq_compat.web.nsqd_service import NsqdService
from nsq_compat.web.stats import HEALTHY, MAX_TOPICS_AT_ONCE, in_steps

OTHERS: Final = "(others)"
_MAX_SAMPLES_AT_ONCE: Final = 50
_NANOSECONDS: Final = 1e9

S = TypeVar("S", TopicStats, ChannelStats)
Labels = tuple[str, ...]


class Column(NamedTuple, Generic[S]):
    """One metric of all topics, or of all channels."""

    name: str
    help: str
    value: Callable[[S], float]
    is_counter: bool = False


_TOPIC: Final[Sequence[Column[TopicStats]]] = (
    Column("nsqd_topic_depth", "Messages not yet copied to a channel.", lambda topic: topic.depth),
    Column(
        "nsqd_topic_backend_depth", "The part of the depth beyond mem-queue-size.", lambda topic: topic.backend_depth
    ),
    Column("nsqd_topic_log_bytes", "Size of the topic's log on disk.", lambda topic: topic.log_bytes),
    Column("nsqd_topic_paused", "1 while the topic is paused.", lambda topic: topic.paused),
    Column("nsqd_topic_messages", "Messages published.", lambda topic: topic.message_count, is_counter=True),
    Column("nsqd_topic_message_bytes", "Bytes of bodies published.", lambda it: it.message_bytes, is_counter=True),
    Column("nsqd_topic_dropped", "Messages dropped.", lambda topic: topic.dropped_count, is_counter=True),
    Column("nsqd_topic_rejected", "Publishes refused: full.", lambda topic: topic.rejected_count, is_counter=True),
    Column("nsqd_topic_duplicates", "Repeated publishes.", lambda topic: topic.duplicate_count, is_counter=True),
    Column("nsqd_topic_publish_ids", "Publish ids in memory.", lambda topic: topic.publish_ids),
    Column("nsqd_topic_forgotten_ids", "Publish ids forgotten.", lambda it: it.forgotten_id_count, is_counter=True),
    Column("nsqd_topic_damaged_records", "Damaged records of the log.", lambda topic: topic.damaged_records),
    Column("nsqd_topic_retained_bytes", "Size of the files that a policy retains.", lambda it: it.retained_bytes),
    Column("nsqd_topic_released_segments", "Log files released.", lambda it: it.released_segments, is_counter=True),
)

_CHANNEL: Final[Sequence[Column[ChannelStats]]] = (
    Column("nsqd_channel_depth", "Messages waiting for a consumer.", lambda channel: channel.depth),
    Column("nsqd_channel_backend_depth", "The part of the depth beyond mem-queue-size.", lambda it: it.backend_depth),
    Column("nsqd_channel_in_flight", "Messages delivered and not yet answered.", lambda it: it.in_flight_count),
    Column("nsqd_channel_deferred", "Messages deferred.", lambda channel: channel.deferred_count),
    Column("nsqd_channel_consumers", "Consumers.", lambda channel: channel.client_count),
    Column("nsqd_channel_ready", "Sum of the consumers' RDY.", lambda it: sum(c.ready_count for c in it.clients or ())),
    Column("nsqd_channel_paused", "1 while the channel is paused.", lambda channel: channel.paused),
    Column("nsqd_channel_messages", "Messages received.", lambda channel: channel.message_count, is_counter=True),
    Column("nsqd_channel_requeues", "Messages requeued.", lambda channel: channel.requeue_count, is_counter=True),
    Column("nsqd_channel_timeouts", "Messages timed out.", lambda channel: channel.timeout_count, is_counter=True),
    Column("nsqd_channel_dropped", "Messages dropped.", lambda channel: channel.dropped_count, is_counter=True),
    Column("nsqd_channel_dead_letters", "Messages dead-lettered.", lambda it: it.dead_letter_count, is_counter=True),
    Column("nsqd_channel_expired", "Messages expired.", lambda channel: channel.expired_count, is_counter=True),
    Column("nsqd_channel_rejected", "Publishes refused: full.", lambda it: it.rejected_count, is_counter=True),
)


class Table(Generic[S]):
    """Series of one topic or channel each, and the sums of all others."""

    def __init__(self, columns: Sequence[Column[S]], label_names: Sequence[str]) -> None:
        self.count = self.other_count = 0
        self._columns: Sequence[Column[S]] = columns
        self._families = [
            (CounterMetricFamily if column.is_counter else GaugeMetricFamily)(
                column.name, column.help, labels=label_names
            )
            for column in columns
        ]
        self._other_labels = (OTHERS,) * len(label_names)
        self._others = [0.0] * len(columns)

    def add(self, labels: Labels, stats: S) -> None:
        self.count += 1
        for column, family in zip(self._columns, self._families, strict=True):
            family.add_metric(labels, float(column.value(stats)))

    def add_to_others(self, stats: S) -> None:
        self.other_count += 1
        for index, column in enumerate(self._columns):
            self._others[index] += column.value(stats)

    def families(self) -> Iterable[Metric]:
        """Call it once, after everything was added."""
        for column, family, value in zip(self._columns, self._families, self._others, strict=True):
            if self.other_count and not column.is_counter:
                family.add_metric(self._other_labels, value)
        return self._families


def collect(service: NsqdService) -> Iterator[Metric]:
    """All metrics, for one scrape."""
    topics, channels = Table(_TOPIC, ("topic",)), Table(_CHANNEL, ("topic", "channel"))
    # A summary, because no other kind may have the label. Without count and sum: of a window, they would not only grow.
    latency = Metric(
        "nsqd_channel_e2e_latency_seconds",
        "Time from publish to FIN in the last window (--e2e-processing-latency-percentile).",
        "summary",
    )
    # Not a column, because a sum of ages says nothing.
    age = GaugeMetricFamily("nsqd_topic_retained_seconds", "Age of the first retained message.", labels=("topic",))
    found = snapshot(service.broker, service.now(), in_steps=in_steps)
    for topic in cooperatively(found, MAX_TOPICS_AT_ONCE):
        fits = topics.count + channels.count + 1 + len(topic.channels) <= service.options.metrics_max_names
        has_series = fits and not is_ephemeral(topic.topic_name)
        if has_series:
            topics.add((topic.topic_name,), topic)
            if topic.retained_bytes:
                age.add_metric((topic.topic_name,), topic.retained_seconds)
        else:
            topics.add_to_others(topic)
        for channel in in_steps(topic.channels):
            names = {"topic": topic.topic_name, "channel": channel.channel_name}
            if has_series and not is_ephemeral(channel.channel_name):
                channels.add(tuple(names.values()), channel)
                for quantile, value in channel.e2e_processing_latency.percentiles or ():
                    latency.add_sample(latency.name, {**names, "quantile": f"{quantile:g}"}, value / _NANOSECONDS)
            else:
                channels.add_to_others(channel)
    yield from _daemon_metrics(service, topics, channels)
    for family in chain(topics.families(), channels.families(), (latency, age)):
        family.samples = _CooperativeSamples(family.samples)
        yield family


def _daemon_metrics(service: NsqdService, topics: Table[TopicStats], channels: Table[ChannelStats]) -> Iterator[Metric]:
    for name, help, value in (
        ("nsqd_healthy", "1 while the data path can be written and read.", service.health() == HEALTHY),
        ("nsqd_draining", "1 while nsqd drains before it stops.", service.draining),
        ("nsqd_connections", "TCP clients.", service.connection_count()),
        ("nsqd_topics", "Topics.", topics.count + topics.other_count),
        ("nsqd_channels", "Channels.", channels.count + channels.other_count),
        ("nsqd_topics_without_series", "Topics in (others).", topics.other_count),
        ("nsqd_channels_without_series", "Channels in (others).", channels.other_count),
    ):
        yield GaugeMetricFamily(name, help, value=float(value))
    yield CounterMetricFamily("nsqd_read_errors", "Failed reads of logs.", value=float(service.read_errors()))


class _CooperativeSamples(list[Sample]):
    """The samples of a family. Iteration lets others run regularly: encoding a sample takes 10 us."""

    def __iter__(self) -> Iterator[Sample]:
        return cooperatively(super().__iter__(), _MAX_SAMPLES_AT_ONCE)
