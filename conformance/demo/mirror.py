"""A pair of nsqds that mirror: the primary is killed and its folder deleted while events are published to it.

The standby takes over, and a consumer that knows only nsqlookupd receives every event that was acknowledged.
"""

import http.client
import shutil
import sys
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path

from nsq_conformance.clients import PYNSQ
from nsq_conformance.cluster import eventually
from nsq_conformance.demo.comparison import say
from nsq_conformance.nsqd_process import NsqdProcess
from nsq_conformance.nsqlookupd_process import NsqlookupdProcess

_TOPIC, _CHANNEL = "mirrored", "demo"
_SECONDS = 3.0


class _Events(threading.Thread):
    """Publishes numbered events until nsqd is gone."""

    def __init__(self, nsqd: NsqdProcess) -> None:
        super().__init__(daemon=True)
        self.acknowledged: list[bytes] = []
        self._address = nsqd.http_address

    def run(self) -> None:
        with suppress(OSError, http.client.HTTPException):
            connection = http.client.HTTPConnection(self._address)
            while True:
                event = b"event %d" % len(self.acknowledged)
                connection.request("POST", f"/pub?topic={_TOPIC}", event)
                if connection.getresponse().read() == b"OK":
                    self.acknowledged.append(event)


def lose_a_machine(command: str, nsqlookupd: NsqlookupdProcess, folder: Path, cleaning: ExitStack) -> None:
    """Raises DaemonFailed, ClientFailed, and SystemExit if an event is lost. `command` runs nsqd."""

    def start(name: str, *options: str) -> NsqdProcess:
        data_path = folder / name
        data_path.mkdir()
        common = [f"--lookupd-tcp-address={nsqlookupd.tcp_address}"]
        log = cleaning.enter_context((folder / f"{name}.log").open("w"))
        nsqd = NsqdProcess(command, data_path, options=[*common, "--broadcast-address=127.0.0.1", *options], log=log)
        return cleaning.enter_context(nsqd)

    standby = start("standby", "--node-id=2", "--mirror-accept", "--mirror-takeover-after=1s")
    primary = start("primary", "--node-id=1", f"--mirror-to={standby.tcp_address}")
    say(f"a second pair: {primary.tcp_address} mirrors to {standby.tcp_address}")
    eventually(lambda: primary.asks("GET", "/mirror").json()["standby"]["state"] == "in sync")
    primary.create_channel(_TOPIC, _CHANNEL)
    events = _Events(primary)
    events.start()
    time.sleep(_SECONDS)
    primary.kill()
    shutil.rmtree(folder / "primary")
    events.join()
    count = len(events.acknowledged)
    say(f"killed the primary and deleted its folder after {count} acknowledged events; waiting for the take-over")
    eventually(lambda: bool(standby.asks("GET", f"/stats?format=json&topic={_TOPIC}").json()["topics"]))
    (topic,) = standby.asks("GET", f"/stats?format=json&topic={_TOPIC}").json()["topics"]
    waiting = topic["channels"][0]["depth"]
    out = folder / "mirrored"
    consumer = PYNSQ.discovering(
        [nsqlookupd.http_address], _TOPIC, _CHANNEL, waiting, out, max_in_flight=500, timeout=60
    )
    cleaning.callback(consumer.stop)
    consumer.report(timeout=90)
    lost = set(events.acknowledged) - set(out.read_bytes().split(b"\n"))
    if lost:
        sys.exit(f"scripts/run: LOST: {len(lost)} of {count} acknowledged events, such as {min(lost)!r}")
    say(f"none lost: the consumer received all {count} events from the standby")
