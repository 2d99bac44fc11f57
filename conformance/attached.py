"""Running daemons that the tests do not start or stop, given by addresses instead of command lines.

``127.0.0.1:4150,127.0.0.1:4151`` is an nsqd or an nsqlookupd, by its TCP and HTTP address; ``127.0.0.1:4171`` is an
nsqadmin. Topics that a test creates there have names unique to the run, and are deleted at the end.
"""

import re
import secrets
from typing import Final, NoReturn, Self
from urllib.parse import urlencode

from nsq_conformance.daemon_process import DaemonProcess
from nsq_conformance.nsqadmin_process import NsqadminProcess
from nsq_conformance.nsqd_process import NsqdProcess
from nsq_conformance.nsqlookupd_process import NsqlookupdProcess

RUN: Final = secrets.token_hex(3)
"""A part of topic names, so that leftovers of an earlier run are not used."""

_ADDRESS: Final = r"[^\s,/=]+:\d+"
_ADDRESSES: Final = {
    "nsqd": re.compile(f"{_ADDRESS},{_ADDRESS}"),
    "nsqlookupd": re.compile(f"{_ADDRESS},{_ADDRESS}"),
    "nsqadmin": re.compile(_ADDRESS),
}

DAEMONS: Final = tuple(_ADDRESSES)


def is_address(daemon: str, text: str) -> bool:
    """Whether `text` has the addresses of a running daemon, not a command line."""
    return _ADDRESSES[daemon].fullmatch(text) is not None


class Attached(DaemonProcess):
    """A daemon that the tests cannot start, stop or read the log of; tests that need this are left out."""

    def __init__(self, addresses: str) -> None:
        *tcp, http = addresses.split(",")
        self._addresses = {"HTTP": http} | ({"TCP": tcp[0]} if tcp else {})

    def start(self, timeout: float = 0.0) -> Self:
        return self

    def stop(self, timeout: float = 0.0) -> int:
        return 0

    def check(self) -> None:
        pass

    def kill(self) -> NoReturn:
        raise AssertionError(f"{self.program} at {self.http_address} was not started by the tests: must not be killed")


class AttachedNsqd(Attached, NsqdProcess):
    def stop(self, timeout: float = 0.0) -> int:
        """Delete the tests' topics; nsqd keeps running."""
        for topic in self.stats_document()["topics"] or ():
            if RUN in topic["topic_name"]:
                self.asks("POST", "/topic/delete?" + urlencode({"topic": topic["topic_name"]}))
        return 0


class AttachedNsqlookupd(Attached, NsqlookupdProcess):
    pass


class AttachedNsqadmin(Attached, NsqadminProcess):
    pass
