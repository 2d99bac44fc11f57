"""What a data path holds, brought back when the daemon starts."""

import logging
import time

from nsq_compat.godata.takeover import take_over
from nsq_compat.log.metadata import TopicMetadata, recover_metadata
from nsq_compat.log.storage import Storage
from nsq_compat.protocol.names import is_valid_name
from nsq_compat.queue.broker import Broker

log = logging.getLogger(__name__)


def restore(broker: Broker, storage: Storage) -> None:
    """Every topic that has a log or is named in nsqd.dat, with its channels. Raises ``MetadataError``, ``OSError``.

    A topic's own log knows best which channels it has and whether it is paused; nsqd.dat knows which channels are, and
    all of a topic that has no log. What can be read of a damaged nsqd.dat is used; a copy of it is kept.
    """
    take_over(storage.files, storage.data_path, storage.segment_size)
    named = {topic.name: topic for topic in recover_metadata(storage.files, storage.data_path)}
    stored = set(storage.names())
    for name in sorted(stored | named.keys()):
        if not is_valid_name(name):
            log.warning("skipping creation of invalid topic %s", name)
            continue
        known = named.get(name, TopicMetadata(name))
        topic = broker.restore(name, [channel.name for channel in known.channels], time.monotonic(), time.time_ns())
        if known.paused and (name not in stored or not topic.channels):
            topic.pause()
        for channel in known.channels:
            if channel.paused and channel.name in topic.channels:
                topic.channels[channel.name].pause()
