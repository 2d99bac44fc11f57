"""Options of NSQ's that are understood and whose feature is not there yet.

What guards a door stops the daemon, because running without it would leave the door open; what merely goes missing is
said in the log.
"""

import logging

from nsq_compat.cli.errors import OptionError
from nsq_compat.nsqd.options import NsqdOptions

log = logging.getLogger(__name__)


def refuse_open_doors(options: NsqdOptions) -> None:
    """Raises ``OptionError`` for options that ask for protection this version cannot give."""
    if options.auth_http_addresses:
        raise OptionError("--auth-http-address is not supported yet")


def warn_of_gaps(options: NsqdOptions) -> None:
    """Log each option that has no effect in this version."""
    if options.enable_experiment:
        log.warning("--enable-experiment has no effect yet")
