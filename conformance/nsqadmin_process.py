"""An nsqadmin, ours or Go's, as a child process, with the requests that tests need."""

from collections.abc import Sequence
from typing import TextIO
from urllib.request import Request, urlopen

from nsq_conformance.daemon_process import DaemonProcess, installed

_PATIENCE = 30.0


def installed_nsqadmin() -> str:
    """The command line of the nsqadmin installed beside the running Python."""
    return installed("nsqadmin")


class NsqadminProcess(DaemonProcess):
    """A running nsqadmin; `options` select its cluster."""

    program = "nsqadmin"
    speaks_tcp = False

    def __init__(self, command: str, *, options: Sequence[str], http_port: int = 0, log: TextIO | None = None) -> None:
        super().__init__(command, http_port=http_port, options=options, log=log)

    def get(self, path: str) -> str:
        """GET a path and return the text. Raises ``urllib.error.HTTPError``."""
        return self._request(Request(f"http://{self.http_address}{path}"))

    def send(self, path: str, body: str, method: str = "POST") -> str:
        """Send a body and return the text. Raises ``urllib.error.HTTPError``."""
        return self._request(Request(f"http://{self.http_address}{path}", body.encode(), method=method))

    def _request(self, request: Request) -> str:
        with urlopen(request, timeout=_PATIENCE) as answer:
            text: str = answer.read().decode()
            return text
