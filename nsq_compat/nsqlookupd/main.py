"""``nsqlookupd``: command line in, exit code out."""

import os
import sys

from nsq_compat import version_line
from nsq_compat.cli.kinds import OptionError
from nsq_compat.cli.lifecycle import exit_checked, exit_fatal, read_options
from nsq_compat.cli.logs import configure
from nsq_compat.net.process import Supervisor, raise_descriptor_limit, stop_signal, tune_gc
from nsq_compat.net.sockets import ListenError, check_address
from nsq_compat.nsqlookupd.daemon import Daemon
from nsq_compat.nsqlookupd.options import PROGRAM, NsqlookupdOptions, validate


def main() -> None:
    """Run nsqlookupd until SIGTERM or SIGINT."""
    options = read_options(PROGRAM, NsqlookupdOptions, sys.argv[1:], version_line(PROGRAM))
    configure(options.log_prefix, options.log_level, form=options.log_format)
    raise_descriptor_limit()
    stop = stop_signal()
    try:
        validate(options)
        if options.check_config:
            for address in filter(None, (options.tcp_address, options.http_address)):
                check_address(address)
            exit_checked(PROGRAM)
        daemon = Daemon(options)
    except (OptionError, ListenError) as error:
        exit_fatal(PROGRAM, f"failed to instantiate nsqlookupd - {error}")
    tune_gc()
    supervisor = Supervisor(os.environ)
    daemon.start()
    supervisor.ready()
    stop.wait()
    supervisor.stopping()
    daemon.stop()


if __name__ == "__main__":
    main()
