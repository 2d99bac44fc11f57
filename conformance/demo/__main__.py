"""``scripts/run``, see ``options``: daemons, comparison, stream and Spark, until Ctrl-C."""

# ruff: noqa: E402
import signal

# Until `main` handles it, Ctrl-C ends the demonstration silently, also while modules are imported.
signal.signal(signal.SIGINT, signal.SIG_DFL)

import argparse
import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import NoReturn, Protocol, TextIO

from nsq_conformance.clients import ClientFailed
from nsq_conformance.daemon_process import DaemonFailed
from nsq_conformance.demo.comparison import compare, language_reference, retain, say
from nsq_conformance.demo.mirror import lose_a_machine
from nsq_conformance.demo.options import PORTS, parse_arguments
from nsq_conformance.demo.spark import CHANNEL, SparkCounts
from nsq_conformance.demo.stream import CHANNELS, TOPIC, EventStream
from nsq_conformance.nsqadmin_process import NsqadminProcess, installed_nsqadmin
from nsq_conformance.nsqd_process import NsqdProcess, installed_nsqd
from nsq_conformance.nsqlookupd_process import NsqlookupdProcess, installed_nsqlookupd


class Running(Protocol):
    """A process that must run until the end."""

    def check(self) -> None:
        """Raise DaemonFailed or ClientFailed if it has ended."""


_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def read_options() -> argparse.Namespace:
    options = parse_arguments()
    options.nsqd = options.nsqd or installed_nsqd()
    options.nsqlookupd = options.nsqlookupd or installed_nsqlookupd()
    options.nsqadmin = options.nsqadmin or installed_nsqadmin()
    return options


def demonstrate(options: argparse.Namespace, cleaning: ExitStack) -> None:
    """Run the demonstration. Raises DaemonFailed, ClientFailed, or SystemExit with a message."""
    check_ports(options)
    folder = Path(cleaning.enter_context(tempfile.TemporaryDirectory(prefix="nsq-demo-")))
    nsqlookupd, nsqd, nsqadmin = start_cluster(options, folder, cleaning)
    is_retained = retain(nsqd, TOPIC)
    file = options.file or language_reference()
    compare(nsqd, nsqlookupd, file, folder, cleaning, is_retained=is_retained)
    if options.mirror:
        lose_a_machine(options.nsqd, nsqlookupd, folder, cleaning)
    with_spark = not options.no_spark
    if options.once and not with_spark:
        return
    # Created before the first event, so that no channel misses one and nsqlookupd knows the topic.
    for channel in (*CHANNELS, *([CHANNEL] if with_spark and not is_retained else ())):
        nsqd.create_channel(TOPIC, channel)
    stream = cleaning.enter_context(EventStream(nsqd.tcp_address, nsqlookupd.http_address))
    say(f"events go through topic {TOPIC}, channels {' and '.join(CHANNELS)}, until the end")
    running: list[Running] = [nsqlookupd, nsqd, nsqadmin, stream]
    if with_spark:
        spark = folder / "spark"
        counts = SparkCounts(nsqlookupd.http_address, spark, once=options.once, is_retained=is_retained)
        running.append(cleaning.enter_context(counts))
        how = "by offset, without a channel" if is_retained else f"on channel {CHANNEL}"
        if options.once:
            say(f"Spark counts them, {how}, which takes a minute, or several on a busy machine")
            print(counts.wait(), end="", flush=True)
            return
        say(f"Spark counts them, {how}; its first table takes a minute, or several on a busy machine")
        if not is_retained:
            say(f"nsqadmin reports that {CHANNEL} has no consumer between two batches, when Spark is not connected")
    stay_until_asked_to_stop(nsqlookupd, nsqd, nsqadmin, running)


def check_ports(options: argparse.Namespace) -> None:
    """Raise DaemonFailed, naming all ports that are in use and the options that change them."""
    taken = []
    for name in PORTS:
        port: int = getattr(options, f"{name.replace('-', '_')}_port")
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind(("127.0.0.1", port))
            except OSError as error:
                taken.append(f"port {port} of --{name}-port ({(error.strerror or '').lower()})")
    if taken:
        raise DaemonFailed(f"cannot listen on {', '.join(taken)}; choose other ports with these options, 0 for any")


def start_cluster(
    options: argparse.Namespace, folder: Path, cleaning: ExitStack
) -> tuple[NsqlookupdProcess, NsqdProcess, NsqadminProcess]:
    """Start the three daemons. Raises DaemonFailed."""
    data_path: Path = options.data_path or folder
    data_path.mkdir(parents=True, exist_ok=True)

    def log_of(program: str) -> TextIO:
        log = folder / f"{program}.log"
        say(f"starting {program}, log {log}")
        return cleaning.enter_context(log.open("w"))

    nsqlookupd = NsqlookupdProcess(
        options.nsqlookupd,
        tcp_port=options.lookupd_tcp_port,
        http_port=options.lookupd_http_port,
        options=["--broadcast-address=127.0.0.1"],
        log=log_of("nsqlookupd"),
    )
    cleaning.enter_context(nsqlookupd)
    nsqd = NsqdProcess(
        options.nsqd,
        data_path,
        tcp_port=options.tcp_port,
        http_port=options.http_port,
        # The address for consumers, because the host name may not resolve.
        options=[f"--lookupd-tcp-address={nsqlookupd.tcp_address}", "--broadcast-address=127.0.0.1"],
        log=log_of("nsqd"),
    )
    cleaning.enter_context(nsqd)
    nsqadmin = NsqadminProcess(
        options.nsqadmin,
        options=[f"--lookupd-http-address={nsqlookupd.http_address}"],
        http_port=options.admin_port,
        log=log_of("nsqadmin"),
    )
    cleaning.enter_context(nsqadmin)
    return nsqlookupd, nsqd, nsqadmin


def stay_until_asked_to_stop(
    nsqlookupd: NsqlookupdProcess, nsqd: NsqdProcess, nsqadmin: NsqadminProcess, running: Sequence[Running]
) -> None:
    """Wait for Ctrl-C, which is the regular end from here on.

    Raises DaemonFailed or ClientFailed if a process ends first.
    """
    try:
        say("running until Ctrl-C; open these addresses in a browser:")
        print(f"   http://{nsqadmin.http_address}/        nsqadmin")
        print(f"   http://{nsqd.http_address}/stats   nsqd, for clients on {nsqd.tcp_address}")
        print(
            f"   http://{nsqlookupd.http_address}/nodes   nsqlookupd, for nsqd on {nsqlookupd.tcp_address}", flush=True
        )
        while True:
            for each in running:
                each.check()
            time.sleep(0.2)
    except KeyboardInterrupt:
        say("stopping nsqadmin, nsqd and nsqlookupd")


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    # Ignored from now on: a second Ctrl-C must not interrupt the stopping of child processes.
    for number in _STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def main() -> None:
    options = read_options()
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
