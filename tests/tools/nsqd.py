"""An nsqd with the questions tests of utilities ask of it."""

from urllib.request import urlopen

from nsq_conformance.nsqd_process import NsqdProcess


class Nsqd(NsqdProcess):
    """With what these tests ask of it."""

    def publish(self, topic: str, *bodies: bytes) -> None:
        for body in bodies:
            urlopen(f"http://{self.http_address}/pub?topic={topic}", body, timeout=30).close()

    def unfinished(self, topic: str, channel: str = "c") -> int:
        """Messages of a channel that are somewhere, and not finished."""
        stats = self.channel_stats(topic, channel)
        return int(stats["depth"] + stats["in_flight_count"] + stats["deferred_count"])

    def waiting(self, topic: str, channel: str = "c") -> int:
        """Messages of a channel that nobody has, if those that somebody has are none; else -1."""
        stats = self.channel_stats(topic, channel)
        return -1 if stats["in_flight_count"] or stats["deferred_count"] else int(stats["depth"])
