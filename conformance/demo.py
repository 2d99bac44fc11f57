"""What ``scripts/run`` shows: nsqd, one process that publishes a real file, another that reads every line of it back.

Both use pynsq, the official Python client, over TCP. The lines received are compared with the file: each must have
come exactly once. Then nsqd stays until Ctrl-C. The exit status is 0 only if nothing differed and nsqd lived until it
was asked to stop.
"""

import argparse
import importlib.util
import os
import signal
import sys
import tempfile
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import NoReturn

from conformance.clients import PYNSQ, ClientFailed
from conformance.daemon_process import DaemonFailed
from conformance.nsqd_process import NsqdProcess, installed_nsqd
from conformance.pynsq_client import numbered_lines

_TOPIC, _CHANNEL = "lines", "demo"
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def language_reference() -> Path:
    """The text behind Python's ``help()``: 17 000 lines of prose, code and nothing, on every machine with Python."""
    found = importlib.util.find_spec("pydoc_data.topics")
    if found is None or found.origin is None:
        sys.exit("scripts/run: this Python has no pydoc_data/topics.py to send; name a file with --file.")
    return Path(found.origin)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/run", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--tcp-port", type=int, default=4150, help="0: any free one (default: 4150)")
    parser.add_argument("--http-port", type=int, default=4151, help="0: any free one (default: 4151)")
    parser.add_argument("--data-path", type=Path, help="nsqd's data path (default: a temporary folder)")
    parser.add_argument("--file", type=Path, help="the file to send (default: one that comes with Python)")
    parser.add_argument("--once", action="store_true", help="stop nsqd after the comparison")
    parser.add_argument(
        "--nsqd",
        default=os.environ.get("NSQD_COMMAND") or installed_nsqd(),
        help="command line of the nsqd to run (default: NSQD_COMMAND from the environment, or ours)",
    )
    return parser.parse_args()


def send_and_receive(nsqd: NsqdProcess, file: Path, out: Path, cleaning: ExitStack) -> None:
    """Publish and consume side by side, and say how fast it went. Raises ClientFailed."""
    count = len(numbered_lines(file))
    consumer = PYNSQ.consuming(nsqd.tcp_address, _TOPIC, _CHANNEL, count, out, max_in_flight=500, timeout=300)
    cleaning.callback(consumer.stop)
    publisher = PYNSQ.publishing(nsqd.tcp_address, _TOPIC, file, window=500)
    cleaning.callback(publisher.stop)
    for verb, amount, client in (("published", "published", publisher), ("consumed", "finished", consumer)):
        report = client.report(timeout=330)
        took = report["seconds"]
        rate = f"{report[amount] / max(took, 1e-9):,.0f} a second"
        say(f"{verb} {report[amount]} messages in {took:.2f} s: {rate} (process {client.process.pid})")


def differences(file: Path, out: Path) -> list[str]:
    """A sentence for each line that did not come exactly once; empty if all is well."""
    sent, received = Counter(numbered_lines(file)), Counter(out.read_bytes().split(b"\n")[:-1])
    return [
        f"{body[:60]!r} was sent {sent[body]} times and received {received[body]} times"
        for body in sent.keys() | received.keys()
        if sent[body] != received[body]
    ]


def say(sentence: str) -> None:
    print(sentence, flush=True)


def demonstrate(options: argparse.Namespace, cleaning: ExitStack) -> None:
    """The whole demonstration. Raises DaemonFailed, ClientFailed, or SystemExit with a sentence."""
    folder = Path(cleaning.enter_context(tempfile.TemporaryDirectory(prefix="nsqd-demo-")))
    data_path: Path = options.data_path or folder
    data_path.mkdir(parents=True, exist_ok=True)
    file: Path = options.file or language_reference()
    count = len(numbered_lines(file))
    nsqd = NsqdProcess(
        options.nsqd,
        data_path,
        tcp_port=options.tcp_port,
        http_port=options.http_port,
        # Room for the whole file: until there is a log on disk, what does not fit into memory is dropped.
        options=[f"--mem-queue-size={max(count, 10_000)}"],
        echo=True,
    )
    say(f"starting nsqd, data path {data_path}")
    cleaning.enter_context(nsqd)
    say(f"sending the {count} lines of {file} through topic {_TOPIC}, channel {_CHANNEL}")
    out = folder / "received"
    send_and_receive(nsqd, file, out, cleaning)
    if wrong := differences(file, out):
        sys.exit("\n".join([*wrong[:20], f"DIFFERENT: {len(wrong)} of {count} lines did not come exactly once"]))
    say(f"the same: each of the {count} lines came back exactly once")
    if not options.once:
        stay_until_asked_to_stop(nsqd)


def stay_until_asked_to_stop(nsqd: NsqdProcess) -> None:
    """From here on Ctrl-C is the way to end, not an interruption. Raises DaemonFailed when nsqd stops first."""
    try:
        say(f"nsqd stays at tcp {nsqd.tcp_address}, http://{nsqd.http_address}/stats - Ctrl-C stops it")
        nsqd.wait()
    except KeyboardInterrupt:
        say("stopping nsqd")


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    # Once: a second Ctrl-C must not cut short the stopping of our children.
    for number in _STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def main() -> None:
    options = parse_arguments()
    for number in _STOP_SIGNALS:
        signal.signal(number, _interrupt)
    try:
        with ExitStack() as cleaning:
            demonstrate(options, cleaning)
    except (DaemonFailed, ClientFailed, OSError) as error:
        sys.exit(f"scripts/run: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
