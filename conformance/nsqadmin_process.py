"""Any nsqadmin, ours or Go's, as a child process, with the requests tests make."""

from collections.abc import Sequence
from urllib.request import Request, urlopen

from nsq_conformance.daemon_process import DaemonProcess, installed

_PATIENCE = 30.0


def installed_nsqadmin() -> str:
    """The nsqadmin that was installed beside the running Python, as a command line."""
    return installed("nsqadmin")


class NsqadminProcess(DaemonProcess):
    """One running nsqadmin; `options` say which cluster it shows."""

    program = "nsqadmin"
    speaks_tcp = False

    def __init__(self, command: str, *, options: Sequence[str], http_port: int = 0, echo: bool = False) -> None:
        super().__init__(command, http_port=http_port, options=options, echo=echo)

    def get(self, path: str) -> str:
        """The text of an answer. Raises ``urllib.error.HTTPError``."""
        return self._request(Request(f"http://{self.http_address}{path}"))

    def send(self, path: str, body: str, method: str = "POST") -> str:
        """As `get`, with a body."""
        return self._request(Request(f"http://{self.http_address}{path}", body.encode(), method=method))

    def _request(self, request: Request) -> str:
        with urlopen(request, timeout=_PATIENCE) as answer:
            text: str = answer.read().decode()
            return text
