"""An nsqlookupd that fault tests start, disturb and restart on the same address."""

import signal
from urllib.request import Request, urlopen

from nsq_conformance.daemon_process import own_host
from nsq_conformance.nsqlookupd_process import NsqlookupdProcess, installed_nsqlookupd


class Directory(NsqlookupdProcess):
    """An nsqlookupd on its own address, so that its ports stay free for a restart."""

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
        """The flag of nsqd for this nsqlookupd."""
        return f"--lookupd-tcp-address={self.tcp_address}"

    def hang(self) -> None:
        """Suspend the process; its connections stay open."""
        self.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self.send_signal(signal.SIGCONT)

    def end(self) -> None:
        """End the process in any state."""
        if hasattr(self, "_process") and self._process.poll() is None:
            self.kill()

    def create_channel(self, topic: str, channel: str) -> None:
        """Register a channel, as of another nsqd."""
        url = f"http://{self.http_address}/channel/create?topic={topic}&channel={channel}"
        urlopen(Request(url, method="POST"), timeout=30).close()

    def topics(self) -> set[str]:
        """The registered topics."""
        return {topic for node in self.get("/nodes")["producers"] for topic in node["topics"]}
