"""nsq_compat: NSQ, the realtime message queue, wire-compatible, in Python on gevent.

The folders are floors of one house; a module imports from its own folder or from a lower floor:

    nsqd, nsqlookupd,
    nsqadmin, tools           the programs: options, wiring, a shutdown order
    cli                       flags, config file, log lines
    web                       HTTP applications
    net, cluster, client      sockets and greenlets; many daemons over HTTP; a client library
    session                   conversations: bytes in, bytes out, no I/O
    queue                     the heart of nsqd: topics, channels, messages in flight
    registry                  the heart of nsqlookupd: who has which topics and channels
    protocol                  bytes <-> values

Read ``protocol/__init__.py`` first, then ``queue/__init__.py``.
"""

import platform
from importlib.util import find_spec

__version__ = "0.1.0"
"""The version of this project."""

NSQ_VERSION = "1.3.0"
"""The version of NSQ whose behaviour we have, and which we announce to clients, in /info and to nsqlookupd."""


def version_line(program: str) -> str:
    """What ``<program> --version`` prints, in the form operators parse: ``nsqd v1.3.0 (built w/python3.11.7)``.

    ``python3.11.7+compiled`` where a message's path is machine code (docs/operations.md).
    """
    compiled = "+compiled" if is_compiled() else ""
    return f"{program} v{NSQ_VERSION} (built w/python{platform.python_version()}{compiled})"


def is_compiled() -> bool:
    """Whether what a message passes through is machine code: where there was a compiler when this was installed."""
    return find_spec("nsq_compat__mypyc") is not None


def missing_package(package: str, extra: str) -> str:
    """What is said where an optional package would be needed and is not installed."""
    return f"{package} is not installed: pip install 'nsq_compat[{extra}]'"
