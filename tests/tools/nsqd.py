"""An nsqd, with the requests that tests of utilities make."""

from urllib.request import urlopen

from nsq_conformance.nsqd_process import NsqdProcess


class Nsqd(NsqdProcess):
    def publish(self, topic: str, *bodies: bytes) -> None:
        for body in bodies:
            urlopen(f"http://{self.http_address}/pub?topic={topic}", body, timeout=30).close()

    def unfinished(self, topic: str, channel: str = "c") -> int:
        """Messages of a channel that are not finished."""
        stats = self.channel_stats(topic, channel)
        return int(stats["depth"] + stats["in_flight_count"] + stats["deferred_count"])

    def waiting(self, topic: str, channel: str = "c") -> int:
        """The depth of a channel without messages in flight or deferred; else -1."""
        stats = self.channel_stats(topic, channel)
        return -1 if stats["in_flight_count"] or stats["deferred_count"] else int(stats["depth"])
