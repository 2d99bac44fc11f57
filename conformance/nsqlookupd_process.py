"""Any nsqlookupd, ours or Go's, as a child process, with the questions tests ask of it."""

import json
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

from nsq_conformance.daemon_process import DaemonProcess, installed


def installed_nsqlookupd() -> str:
    """The nsqlookupd that was installed beside the running Python, as a command line."""
    return installed("nsqlookupd")


class NsqlookupdProcess(DaemonProcess):
    """One running nsqlookupd."""

    program = "nsqlookupd"

    def get(self, path: str, **parameters: str) -> Any:
        """The JSON of an answer. Raises ``urllib.error.HTTPError``."""
        with urlopen(f"http://{self.http_address}{path}?{urlencode(parameters)}", timeout=10) as response:
            return json.load(response)
