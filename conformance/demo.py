"""What ``scripts/run`` shows: nsqlookupd, nsqd, nsqadmin, a process that publishes a real file, one that reads it back.

Both use pynsq, the official Python client. The publisher is told where nsqd is; the consumer is told only where
nsqlookupd is, and finds nsqd by asking it. The lines received are compared with the file: each must have come exactly
once. Then the daemons stay until Ctrl-C, and nsqadmin shows in a browser what went through. The exit status is 0 if
nothing differed and all of them lived until they were asked to stop, and not otherwise.
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
from conformance.daemon_process import DaemonFailed, wait_for_any
from conformance.nsqadmin_process import NsqadminProcess, installed_nsqadmin
from conformance.nsqd_process import NsqdProcess, installed_nsqd
from conformance.nsqlookupd_process import NsqlookupdProcess, installed_nsqlookupd
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
    for name, port in (("tcp", 4150), ("http", 4151), ("lookupd-tcp", 4160), ("lookupd-http", 4161), ("admin", 4171)):
        parser.add_argument(f"--{name}-port", type=int, default=port, help=f"0: any free one (default: {port})")
    parser.add_argument("--data-path", type=Path, help="nsqd's data path (default: a temporary folder)")
    parser.add_argument("--file", type=Path, help="the file to send (default: one that comes with Python)")
    parser.add_argument("--once", action="store_true", help="stop after the comparison")
    for name, installed in (
        *(("nsqd", installed_nsqd()), ("nsqlookupd", installed_nsqlookupd())),
        ("nsqadmin", installed_nsqadmin()),
    ):
        variable = f"{name.upper()}_COMMAND"
        parser.add_argument(
            f"--{name}",
            default=os.environ.get(variable) or installed,
            help=f"command line of the {name} to run (default: {variable} from the environment, or ours)",
        )
    return parser.parse_args()


def send_and_receive(
    nsqd: NsqdProcess, nsqlookupd: NsqlookupdProcess, file: Path, out: Path, cleaning: ExitStack
) -> None:
    """Publish and consume side by side, and say how fast it went. Raises ClientFailed."""
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
    folder = Path(cleaning.enter_context(tempfile.TemporaryDirectory(prefix="nsq-demo-")))
    data_path: Path = options.data_path or folder
    data_path.mkdir(parents=True, exist_ok=True)
    file: Path = options.file or language_reference()
    count = len(numbered_lines(file))
    nsqlookupd = NsqlookupdProcess(
        options.nsqlookupd,
        tcp_port=options.lookupd_tcp_port,
        http_port=options.lookupd_http_port,
        options=["--broadcast-address=127.0.0.1"],
        echo=True,
    )
    say("starting nsqlookupd")
    cleaning.enter_context(nsqlookupd)
    nsqd = NsqdProcess(
        options.nsqd,
        data_path,
        tcp_port=options.tcp_port,
        http_port=options.http_port,
        # Where the consumer is to find it: a host name need not resolve on every machine.
        options=[f"--lookupd-tcp-address={nsqlookupd.tcp_address}", "--broadcast-address=127.0.0.1"],
        echo=True,
    )
    say(f"starting nsqd, data path {data_path}")
    cleaning.enter_context(nsqd)
    nsqadmin = NsqadminProcess(
        options.nsqadmin,
        options=[f"--lookupd-http-address={nsqlookupd.http_address}"],
        http_port=options.admin_port,
    )
    say("starting nsqadmin")
    cleaning.enter_context(nsqadmin)
    say(f"sending the {count} lines of {file} through topic {_TOPIC}, channel {_CHANNEL}")
    out = folder / "received"
    send_and_receive(nsqd, nsqlookupd, file, out, cleaning)
    if wrong := differences(file, out):
        sys.exit("\n".join([*wrong[:20], f"DIFFERENT: {len(wrong)} of {count} lines did not come exactly once"]))
    say(f"the same: each of the {count} lines came back exactly once")
    if not options.once:
        stay_until_asked_to_stop(nsqd, nsqlookupd, nsqadmin)


def stay_until_asked_to_stop(nsqd: NsqdProcess, nsqlookupd: NsqlookupdProcess, nsqadmin: NsqadminProcess) -> None:
    """From here on Ctrl-C is the way to end, not an interruption. Raises DaemonFailed when a daemon stops first."""
    try:
        say(f"nsqlookupd stays at tcp {nsqlookupd.tcp_address}, http://{nsqlookupd.http_address}/nodes")
        say(f"nsqd stays at tcp {nsqd.tcp_address}, http://{nsqd.http_address}/stats")
        say(f"nsqadmin stays at http://{nsqadmin.http_address}/ - Ctrl-C stops all three")
        wait_for_any(nsqd, nsqlookupd, nsqadmin)
    except KeyboardInterrupt:
        say("stopping nsqadmin, nsqd and nsqlookupd")


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
