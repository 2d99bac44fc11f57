"""Sends a file through nsqd, and checks that a consumer that knows only nsqlookupd receives every line once.

If nsqd can retain messages, which Go's cannot, a channel that is created afterwards receives every line again.
"""

import importlib.util
import json
import os
import sys
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from nsq_conformance.clients import PYNSQ
from nsq_conformance.nsqd_process import NsqdProcess
from nsq_conformance.nsqlookupd_process import NsqlookupdProcess
from nsq_conformance.pynsq_client import numbered_lines

_TOPIC, _CHANNEL, _REPLAY = "lines", "demo", "replay"


def language_reference() -> Path:
    """The text of Python's ``help()``: 17 000 lines of prose, code and empty lines, on every machine with Python."""
    found = importlib.util.find_spec("pydoc_data.topics")
    if found is None or found.origin is None:
        sys.exit("scripts/run: this Python has no pydoc_data/topics.py to send; name a file with --file.")
    return Path(found.origin)


def retain(nsqd: NsqdProcess, *topics: str) -> bool:
    """Let nsqd retain what these topics and the comparison publish. Returns whether it can."""
    policies = [{"topic": topic, "retain_for": "24h"} for topic in (_TOPIC, *topics)]
    return nsqd.asks("PUT", "/config/policies", json.dumps(policies).encode()).status == 200


def compare(
    nsqd: NsqdProcess,
    nsqlookupd: NsqlookupdProcess,
    file: Path,
    folder: Path,
    cleaning: ExitStack,
    *,
    is_retained: bool,
) -> None:
    """Send, receive, compare, and print the result; `folder` is for received lines.

    Raises ClientFailed, and SystemExit with the lines that differ.
    """
    count = len(numbered_lines(file))
    say(f"sending the {count} lines of {file} through topic {_TOPIC}, channel {_CHANNEL}")
    out = folder / "received"
    before = nsqd.asks("GET", f"/topic/offsets?topic={_TOPIC}")  # an earlier run may have used the data path
    send_and_receive(nsqd, nsqlookupd, file, out, cleaning)
    end_if_different(file, out)
    say(f"the same: each of the {count} lines came back exactly once")
    if is_retained:
        begin = before.json()["next"] if before.status == 200 else 0
        replay(nsqd, nsqlookupd, file, begin, folder / "replayed", cleaning)
        say(f"replayed: a new channel, created from the first of them on, received all {count} lines again")


def replay(
    nsqd: NsqdProcess, nsqlookupd: NsqlookupdProcess, file: Path, begin: int, out: Path, cleaning: ExitStack
) -> None:
    """Create a channel at this offset, and receive the lines through it. Raises ClientFailed, and SystemExit."""
    channel = f"topic={_TOPIC}&channel={_REPLAY}"
    nsqd.asks("POST", f"/channel/delete?{channel}")
    created = nsqd.asks("POST", f"/channel/create?{channel}&from={begin}")
    if created.status != 200:
        sys.exit(f"scripts/run: nsqd cannot create a channel at offset {begin}: {created.body.decode()}")
    count = len(numbered_lines(file))
    consumer = PYNSQ.discovering([nsqlookupd.http_address], _TOPIC, _REPLAY, count, out, max_in_flight=500, timeout=300)
    cleaning.callback(consumer.stop)
    consumer.report(timeout=330)
    end_if_different(file, out)


def end_if_different(file: Path, out: Path) -> None:
    """Raises SystemExit with the lines that differ."""
    if wrong := differences(file, out):
        count = len(numbered_lines(file))
        sys.exit("\n".join([*wrong[:20], f"DIFFERENT: {len(wrong)} of {count} lines did not come exactly once"]))


def send_and_receive(
    nsqd: NsqdProcess, nsqlookupd: NsqlookupdProcess, file: Path, out: Path, cleaning: ExitStack
) -> None:
    """Publish and consume side by side, and print the rates. Raises ClientFailed."""
    count = len(numbered_lines(file))
    consumer = PYNSQ.discovering(
        [nsqlookupd.http_address], _TOPIC, _CHANNEL, count, out, max_in_flight=500, timeout=300
    )
    cleaning.callback(consumer.stop)
    publisher = PYNSQ.publishing(nsqd.tcp_address, _TOPIC, file, window=500)
    cleaning.callback(publisher.stop)
    for verb, amount, client in (("published", "published", publisher), ("consumed", "finished", consumer)):
        report = client.report(timeout=330)
        took = report["seconds"]
        rate = f"{report[amount] / max(took, 1e-9):,.0f} a second"
        say(f"{verb} {report[amount]} messages in {took:.2f} s: {rate} (process {client.process.pid})")


def differences(file: Path, out: Path) -> list[str]:
    """A sentence for each line that was not received exactly once."""
    sent, received = Counter(numbered_lines(file)), Counter(out.read_bytes().split(b"\n")[:-1])
    return [
        f"{body[:60]!r} was sent {sent[body]} times and received {received[body]} times"
        for body in sent.keys() | received.keys()
        if sent[body] != received[body]
    ]


def say(sentence: str) -> None:
    """Print a line of the demonstration's own, in colour on a terminal. NO_COLOR turns colours off."""
    is_coloured = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    before, after = ("\x1b[1;36m", "\x1b[0m") if is_coloured else ("", "")
    print(f"{before}== {sentence}{after}", flush=True)
