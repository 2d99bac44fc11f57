"""nsq_compat: NSQ, the realtime message queue, wire-compatible, in Python on gevent.

A module imports from its own folder or from a lower one; the folders, from top to bottom:

    nsqd, nsqlookupd,
    nsqadmin, tools           the programs: options, wiring, start and stop
    cli                       flags, config file, log lines
    web                       HTTP applications
    net, cluster, client      sockets and greenlets; many daemons over HTTP; a client library
    bounded_http.py           HTTP requests with one deadline
    session                   conversations: bytes in, bytes out, no I/O
    policy, godata            policies and dead letters; the files of Go's nsqd
    queue                     the core of nsqd: topics, channels, messages in flight
    log                       topics on disk
    registry                  the core of nsqlookupd: the nodes of every topic and channel
    protocol                  bytes <-> values

Read ``protocol/__init__.py`` first, then ``queue/__init__.py``.
"""

import platform
from importlib.util import find_spec

__version__ = "0.1.0"
"""The version of this project."""

NSQ_VERSION = "1.3.0"
"""The version of NSQ that is implemented; announced to clients, in /info and to nsqlookupd."""


def version_line(program: str) -> str:
    """What ``<program> --version`` prints, in the form operators parse: ``nsqd v1.3.0 (built w/python3.11.7)``.

    ``python3.11.7+compiled`` where the message path is machine code (docs/operations.md).
    """
    compiled = "+compiled" if is_compiled() else ""
    return f"{program} v{NSQ_VERSION} (built w/python{platform.python_version()}{compiled})"


def is_compiled() -> bool:
    """Whether the message path was compiled to machine code, which the installation does if there is a C compiler."""
    return find_spec("nsq_compat__mypyc") is not None


def missing_package(package: str, extra: str) -> str:
    """The error text for an optional package that is needed and not installed."""
    return f"{package} is not installed: pip install 'nsq_compat[{extra}]'"
