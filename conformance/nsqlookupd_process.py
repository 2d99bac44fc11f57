"""An nsqlookupd, ours or Go's, as a child process, with the requests that tests need."""

import json
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

from nsq_conformance.daemon_process import DaemonProcess, installed


def installed_nsqlookupd() -> str:
    """The command line of the nsqlookupd installed beside the running Python."""
    return installed("nsqlookupd")


class NsqlookupdProcess(DaemonProcess):
    """A running nsqlookupd."""

    program = "nsqlookupd"

    def get(self, path: str, **parameters: str) -> Any:
        """GET a path and return the JSON. Raises ``urllib.error.HTTPError``."""
        with urlopen(f"http://{self.http_address}{path}?{urlencode(parameters)}", timeout=10) as response:
            return json.load(response)
