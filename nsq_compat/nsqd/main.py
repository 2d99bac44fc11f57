"""The program ``nsqd``: reads the command line, runs the daemon, and exits."""

import errno
import sys
from collections.abc import Callable
from typing import NoReturn

import gevent

from nsq_compat import version_text
from nsq_compat.cli.flags import exit_checked, exit_fatal, read_options, warn_of_options
from nsq_compat.cli.kinds import OptionError
from nsq_compat.cli.logs import configure
from nsq_compat.log.data_path import DataPathError, LaterVersion, reason
from nsq_compat.log.metadata import MetadataError
from nsq_compat.net.certificates import CertificateError
from nsq_compat.net.process import (
    Supervisor,
    exempt_from_collection,
    on_hangup,
    raise_descriptor_limit,
    reuse_freed_memory,
    shorten_thread_switches,
    stop_signal,
    tune_gc,
)
from nsq_compat.net.sockets import ListenError
from nsq_compat.nsqd.daemon import Daemon
from nsq_compat.nsqd.options import DRAIN, PROGRAM, NsqdOptions, validate
from nsq_compat.nsqd.startup import POLICIES, check


def main() -> None:
    """Run nsqd until SIGTERM or SIGINT."""
    options = read_options(PROGRAM, NsqdOptions, sys.argv[1:], version_text(PROGRAM), {POLICIES})
    configure(options.log_prefix, options.log_level, form=options.log_format)
    warn_of_options(options, PROGRAM)
    raise_descriptor_limit()
    before_stopping: list[Callable[[], None]] = []
    stop = stop_signal(before_stopping)
    try:
        validate(options)
        if options.check_config:
            check(options)
            exit_checked(PROGRAM)
        daemon = Daemon(options)
    except (OptionError, CertificateError, DataPathError, ListenError) as error:
        exit_fatal(PROGRAM, f"failed to instantiate nsqd - {error}")
    except OSError as error:
        _exit_unreadable(options, error)
    tune_gc()
    reuse_freed_memory()
    shorten_thread_switches()
    supervisor = Supervisor()
    if options.sigterm == DRAIN:
        before_stopping.append(daemon.drain)
    on_hangup(daemon.reload)
    try:
        daemon.start()
    except MetadataError as error:
        exit_fatal(PROGRAM, f"failed to load metadata - {error}")
    except OSError as error:
        _exit_unreadable(options, error)
    exempt_from_collection()
    supervisor.ready()
    gevent.wait([stop, daemon.drained], count=1)
    supervisor.stopping()
    daemon.stop()
    exempt_from_collection()


def _exit_unreadable(options: NsqdOptions, error: OSError) -> NoReturn:
    where = error.filename or options.data_path
    exit_fatal(PROGRAM, f"failed to load the data path - {where}: {reason(error)}; see {_section_on(error)}")


def _section_on(error: OSError) -> str:
    """The section of the documentation on an error that refuses a start."""
    if isinstance(error, LaterVersion):
        return "Go back in docs/upgrading.md"
    is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    return f"{'The disk is full' if is_full else 'Read errors'} in docs/runbook.md"


if __name__ == "__main__":
    main()
