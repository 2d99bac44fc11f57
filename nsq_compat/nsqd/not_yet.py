"""Options of NSQ's that are understood and whose feature is not there yet.

What guards a door stops the daemon, because running without it would leave the door open.
"""

from nsq_compat.cli.errors import OptionError
from nsq_compat.nsqd.options import NsqdOptions


def refuse_open_doors(options: NsqdOptions) -> None:
    """Raises ``OptionError`` for options that ask for protection this version cannot give."""
    if options.auth_http_addresses:
        raise OptionError("--auth-http-address is not supported yet")
