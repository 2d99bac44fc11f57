"""Daemons that somebody else has started, and goes on running: addresses in place of command lines.

``127.0.0.1:4150,127.0.0.1:4151`` is an nsqd or an nsqlookupd, its TCP and its HTTP address; ``127.0.0.1:4171`` an
nsqadmin. What a test makes there has a name no other run uses, and is deleted when the tests are over.
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
"""A part of the names of topics, so that nothing an earlier run has left is met."""

_ADDRESS: Final = r"[^\s,/=]+:\d+"
_ADDRESSES: Final = {
    "nsqd": re.compile(f"{_ADDRESS},{_ADDRESS}"),
    "nsqlookupd": re.compile(f"{_ADDRESS},{_ADDRESS}"),
    "nsqadmin": re.compile(_ADDRESS),
}


def is_address(daemon: str, text: str) -> bool:
    """Whether it says where one runs, rather than how to run one."""
    return _ADDRESSES[daemon].fullmatch(text) is not None


class Attached(DaemonProcess):
    """Not ours to start, stop or ask for its log: what needs that is left out."""

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
        raise AssertionError(f"the {self.program} at {self.http_address} is not ours to kill")


class AttachedNsqd(Attached, NsqdProcess):
    def stop(self, timeout: float = 0.0) -> int:
        """It goes on without what the tests made."""
        for topic in self.stats_document()["topics"] or ():
            if RUN in topic["topic_name"]:
                self.asks("POST", "/topic/delete?" + urlencode({"topic": topic["topic_name"]}))
        return 0


class AttachedNsqlookupd(Attached, NsqlookupdProcess):
    pass


class AttachedNsqadmin(Attached, NsqadminProcess):
    pass
