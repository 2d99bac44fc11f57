"""An nsqd, ours or Go's, as a child process with a data path, and the requests that tests need."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO
from urllib.parse import urlencode

from nsq_conformance.daemon_process import DaemonProcess, installed


def installed_nsqd() -> str:
    """The command line of the nsqd installed beside the running Python."""
    return installed("nsqd")


class NsqdProcess(DaemonProcess):
    """A running nsqd."""

    program = "nsqd"

    def __init__(
        self,
        command: str,
        data_path: Path,
        *,
        tcp_port: int = 0,
        http_port: int = 0,
        options: Sequence[str] = (),
        log: TextIO | None = None,
    ) -> None:
        options = (f"--data-path={data_path}", *options)
        super().__init__(command, tcp_port=tcp_port, http_port=http_port, options=options, log=log)

    def stats_document(self, **query: str) -> Any:
        """The JSON document of ``/stats``."""
        return self.asks("GET", "/stats?" + urlencode({"format": "json"} | query)).json()

    def topic_stats(self, topic: str) -> dict[str, Any] | None:
        """The entry of a topic in ``/stats``; None if there is none."""
        return next(iter(self.stats_document(topic=topic)["topics"] or ()), None)

    def channel_stats(self, topic: str, channel: str) -> dict[str, Any]:
        """The entry of a channel in ``/stats``. Raises LookupError if there is none."""
        for each_topic in self.stats_document(topic=topic, channel=channel)["topics"] or ():
            for each_channel in each_topic["channels"]:
                if (each_topic["topic_name"], each_channel["channel_name"]) == (topic, channel):
                    stats: dict[str, Any] = each_channel
                    return stats
        raise LookupError(f"/stats shows no channel {channel} of topic {topic}")

    def create_channel(self, topic: str, channel: str) -> None:
        """Create the channel, and its topic if necessary."""
        for path, names in (("topic", {"topic": topic}), ("channel", {"topic": topic, "channel": channel})):
            answer = self.asks("POST", f"/{path}/create?{urlencode(names)}")
            assert answer.status == 200, answer.body
