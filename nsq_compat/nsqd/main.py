"""``nsqd``: command line in, exit code out."""

import signal
import sys

import gevent
from gevent.event import Event

from nsq_compat import version_line
from nsq_compat.cli.errors import OptionError
from nsq_compat.cli.lifecycle import exit_fatal, read_options
from nsq_compat.cli.logs import configure
from nsq_compat.net.listeners import ListenError
from nsq_compat.nsqd.daemon import Daemon
from nsq_compat.nsqd.options import PROGRAM, NsqdOptions, validate


def main() -> None:
    """Run nsqd until SIGTERM or SIGINT."""
    options = read_options(PROGRAM, NsqdOptions, sys.argv[1:], version_line(PROGRAM))
    configure(options.log_prefix, options.log_level)
    try:
        validate(options)
        daemon = Daemon(options)
    except (OptionError, ListenError) as error:
        exit_fatal(PROGRAM, f"failed to instantiate nsqd - {error}")
    stop = Event()
    # nsqd: both stop it cleanly; while it stops, more of them change nothing.
    for number in (signal.SIGTERM, signal.SIGINT):
        gevent.signal_handler(number, stop.set)
    daemon.start()
    stop.wait()
    daemon.stop()


if __name__ == "__main__":
    main()
