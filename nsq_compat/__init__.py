"""nsq_compat: NSQ, the realtime message queue, wire-compatible, in Python on gevent.

A module imports from its own folder or from a lower one; the folders, from top to bottom:

    programs.py               the console scripts
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

__version__ = "0.1.0"
"""The version of this project."""

NSQ_VERSION = "1.3.0"
"""The version of NSQ that is implemented; announced to clients, in /info and to nsqlookupd."""


def version_line(program: str) -> str:
    """The first line of ``--version``, in the form that NSQ's clients parse: ``nsqd v1.3.0 (built w/python3.11.7)``."""
    return f"{program} v{NSQ_VERSION} (built w/{build()})"


def build() -> str:
    """``python3.11.7``, and ``python3.11.7-compiled`` if the message path is machine code (docs/operations.md)."""
    # Not at the top: `programs` is imported after this module, and should be as soon as possible.
    import sys

    # gnsq accepts no other characters; Debian has had a Python 3.11.2+.
    allowed = frozenset("abcdefghijklmnopqrstuvwxyz0123456789.-")
    python = "".join(filter(allowed.__contains__, sys.version.split()[0]))
    return f"python{python}{'-compiled' if is_compiled() else ''}"


def build_line() -> str:
    """The second line of ``--version``, also at the start of a daemon's log."""
    import os

    if is_compiled():
        compiled = "yes"
    elif os.path.exists(os.path.join(os.path.dirname(__file__), os.pardir, "setup.py")):
        compiled = "no (a checkout is interpreted: install gcc and python3-dev, then install it without --editable)"
    else:
        compiled = "no (install gcc and python3-dev, then reinstall without NSQ_COMPAT_COMPILED=0)"
    return f"nsq_compat {__version__}, compiled: {compiled}"


def version_text(program: str) -> str:
    """What ``--version`` prints."""
    return f"{version_line(program)}\n{build_line()}"


def build_info() -> dict[str, object]:
    """The member ``nsq_compat`` of /info, which Go's daemons do not have."""
    return {"version": __version__, "build": build(), "compiled": is_compiled()}


def is_compiled() -> bool:
    """Whether the message path was compiled to machine code, which the installation does if there is a C compiler."""
    from importlib.util import find_spec

    return find_spec("nsq_compat__mypyc") is not None


def missing_package(package: str, extra: str) -> str:
    """The error text for an optional package that is needed and not installed."""
    return f"{package} is not installed: pip install 'nsq_compat[{extra}]'"
