"""An nsqd, with the requests that tests of utilities make."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nsq_compat.client import Producer
from nsq_conformance.nsqd_process import NsqdProcess


class Nsqd(NsqdProcess):
    def __init__(self, command: str, data_path: Path, *, options: Sequence[str] = (), **ports: Any) -> None:
        # The name of the machine may not resolve.
        options = ("--broadcast-address=127.0.0.1", *options)
        super().__init__(command, data_path, options=options, **ports)

    def publish(self, topic: str, *bodies: bytes) -> None:
        with Producer(self.tcp_address) as producer:
            for outcome in [producer.publish_async(topic, body) for body in bodies]:
                outcome.result()

    def stat(self, topic: str, name: str, channel: str = "c") -> int:
        """A number of a channel in /stats."""
        return int(self.channel_stats(topic, channel)[name])

    def unfinished(self, topic: str, channel: str = "c") -> int:
        """Messages of a channel that are not finished, and those that the topic holds before it has its channels."""
        held = self.topic_stats(topic)
        stats = self.channel_stats(topic, channel)
        waiting = int(held["depth"]) if held is not None else 0
        return waiting + int(stats["depth"] + stats["in_flight_count"] + stats["deferred_count"])

    def waiting(self, topic: str, channel: str = "c") -> int:
        """The depth of a channel without messages in flight or deferred; else -1."""
        stats = self.channel_stats(topic, channel)
        return -1 if stats["in_flight_count"] or stats["deferred_count"] else int(stats["depth"])
