"""An nsqlookupd that fault tests start, hurt and start again where it was."""

import signal
from urllib.request import Request, urlopen

from nsq_conformance.daemon_process import own_host
from nsq_conformance.nsqlookupd_process import NsqlookupdProcess, installed_nsqlookupd


class Directory(NsqlookupdProcess):
    """One nsqlookupd, on an address that nobody else uses, so that its ports stay free for its return."""

    def __init__(self) -> None:
        host = own_host()
        super().__init__(
            installed_nsqlookupd(),
            options=[
                f"--tcp-address={host}:0",
                f"--http-address={host}:0",
                f"--broadcast-address={host}",
            ],
        )

    @property
    def flag(self) -> str:
        """How nsqd is told of it."""
        return f"--lookupd-tcp-address={self.tcp_address}"

    def hang(self) -> None:
        """Do nothing any more, with every connection open."""
        self.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self.send_signal(signal.SIGCONT)

    def end(self) -> None:
        """Whatever became of it, it is gone after this."""
        if hasattr(self, "_process") and self._process.poll() is None:
            self.kill()

    def create_channel(self, topic: str, channel: str) -> None:
        """Let it know of a channel that some other nsqd has."""
        url = f"http://{self.http_address}/channel/create?topic={topic}&channel={channel}"
        urlopen(Request(url, method="POST"), timeout=30).close()

    def topics(self) -> set[str]:
        """Those that somebody is registered with."""
        return {topic for node in self.get("/nodes")["producers"] for topic in node["topics"]}
