"""What ``scripts/run`` shows: nsqlookupd, nsqd, nsqadmin, a process that publishes a real file, one that reads it back.

Both use pynsq, the official Python client. The publisher is told where nsqd is; the consumer is told only where
nsqlookupd is, and finds nsqd by asking it. The lines received are compared with the file: each must have come exactly
once. Then events go through topic events, some dozens a second, with a consumer that keeps up and one that now and then
does not; Spark counts them by page and window of time, and nsqadmin shows in a browser how they move, until Ctrl-C. The
exit status is 0 if nothing differed and all lived until they were asked to stop, and not otherwise.
"""

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import NoReturn, Protocol

from nsq_conformance.clients import ClientFailed
from nsq_conformance.daemon_process import DaemonFailed
from nsq_conformance.demo.comparison import compare, language_reference, say
from nsq_conformance.demo.spark import CHANNEL, SparkCounts
from nsq_conformance.demo.stream import CHANNELS, TOPIC, EventStream
from nsq_conformance.nsqadmin_process import NsqadminProcess, installed_nsqadmin
from nsq_conformance.nsqd_process import NsqdProcess, installed_nsqd
from nsq_conformance.nsqlookupd_process import NsqlookupdProcess, installed_nsqlookupd


class Running(Protocol):
    """What is to live until the end."""

    def check(self) -> None:
        """Raises DaemonFailed or ClientFailed when it does not."""


_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/run", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    for name, port in (("tcp", 4150), ("http", 4151), ("lookupd-tcp", 4160), ("lookupd-http", 4161), ("admin", 4171)):
        parser.add_argument(f"--{name}-port", type=int, default=port, help=f"0: any free one (default: {port})")
    parser.add_argument("--data-path", type=Path, help="nsqd's data path (default: a temporary folder)")
    parser.add_argument("--file", type=Path, help="the file to send (default: one that comes with Python)")
    parser.add_argument(
        "--once", action="store_true", help="stop when the comparison is made and Spark's table is shown"
    )
    parser.add_argument(
        "--no-spark", action="store_true", help="without Spark, which has to be installed and takes long to start"
    )
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


def demonstrate(options: argparse.Namespace, cleaning: ExitStack) -> None:
    """The whole demonstration. Raises DaemonFailed, ClientFailed, or SystemExit with a sentence."""
    folder = Path(cleaning.enter_context(tempfile.TemporaryDirectory(prefix="nsq-demo-")))
    nsqlookupd, nsqd, nsqadmin = start_cluster(options, folder, cleaning)
    compare(nsqd, nsqlookupd, options.file or language_reference(), folder, cleaning)
    with_spark = not options.no_spark
    if options.once and not with_spark:
        return
    # Before the first event: nobody misses one while he starts, and nsqlookupd knows the topic when it is asked.
    for channel in (*CHANNELS, *([CHANNEL] if with_spark else ())):
        nsqd.create_channel(TOPIC, channel)
    stream = cleaning.enter_context(EventStream(nsqd.tcp_address, nsqlookupd.http_address))
    say(f"events go through topic {TOPIC}, channels {' and '.join(CHANNELS)}, until the end")
    running: list[Running] = [nsqlookupd, nsqd, nsqadmin, stream]
    if with_spark:
        say(f"Spark counts them, on channel {CHANNEL}; it takes a while to start")
        counts = SparkCounts(nsqlookupd.http_address, folder / "spark", once=options.once)
        running.append(cleaning.enter_context(counts))
        if options.once:
            counts.wait()
            return
    stay_until_asked_to_stop(nsqlookupd, nsqd, nsqadmin, running)


def start_cluster(
    options: argparse.Namespace, folder: Path, cleaning: ExitStack
) -> tuple[NsqlookupdProcess, NsqdProcess, NsqadminProcess]:
    """All three listening. Raises DaemonFailed."""
    data_path: Path = options.data_path or folder
    data_path.mkdir(parents=True, exist_ok=True)
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
    return nsqlookupd, nsqd, nsqadmin


def stay_until_asked_to_stop(
    nsqlookupd: NsqlookupdProcess, nsqd: NsqdProcess, nsqadmin: NsqadminProcess, running: Sequence[Running]
) -> None:
    """From here on Ctrl-C is the way to end, not an interruption.

    Raises DaemonFailed or ClientFailed when one of them ends first.
    """
    try:
        say(f"nsqlookupd stays at tcp {nsqlookupd.tcp_address}, http://{nsqlookupd.http_address}/nodes")
        say(f"nsqd stays at tcp {nsqd.tcp_address}, http://{nsqd.http_address}/stats")
        say(f"nsqadmin stays at http://{nsqadmin.http_address}/ - Ctrl-C stops all three")
        while True:
            for each in running:
                each.check()
            time.sleep(0.2)
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
