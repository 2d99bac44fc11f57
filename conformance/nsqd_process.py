"""Any nsqd, ours or Go's, as a child process, with a data path and the questions tests ask of it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from nsq_conformance.daemon_process import DaemonProcess, installed


def installed_nsqd() -> str:
    """The nsqd that was installed beside the running Python, as a command line."""
    return installed("nsqd")


class NsqdProcess(DaemonProcess):
    """One running nsqd."""

    program = "nsqd"

    def __init__(
        self,
        command: str,
        data_path: Path,
        *,
        tcp_port: int = 0,
        http_port: int = 0,
        options: Sequence[str] = (),
        echo: bool = False,
    ) -> None:
        options = (f"--data-path={data_path}", *options)
        super().__init__(command, tcp_port=tcp_port, http_port=http_port, options=options, echo=echo)

    def stats_document(self, **query: str) -> Any:
        """All that ``/stats`` says."""
        return self.asks("GET", "/stats?" + urlencode({"format": "json"} | query)).json()

    def topic_stats(self, topic: str) -> dict[str, Any] | None:
        """What ``/stats`` says of one topic, if there is one."""
        return next(iter(self.stats_document(topic=topic)["topics"] or ()), None)

    def channel_stats(self, topic: str, channel: str) -> dict[str, Any]:
        """What ``/stats`` says of one channel. Raises LookupError while there is no such channel."""
        for each_topic in self.stats_document(topic=topic, channel=channel)["topics"] or ():
            for each_channel in each_topic["channels"]:
                if (each_topic["topic_name"], each_channel["channel_name"]) == (topic, channel):
                    stats: dict[str, Any] = each_channel
                    return stats
        raise LookupError(f"/stats shows no channel {channel} of topic {topic}")

    def create_channel(self, topic: str, channel: str) -> None:
        """Make the channel, and its topic if need be, before anybody publishes or subscribes."""
        for path, names in (("topic", {"topic": topic}), ("channel", {"topic": topic, "channel": channel})):
            assert self.asks("POST", f"/{path}/create?{urlencode(names)}").status == 200
