"""What ``nsq-conformance`` checks before it runs tests, so that a mistake is reported in a sentence, and at once."""

import os
import re
import shlex
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Mapping
from http.client import HTTPException
from importlib import metadata
from pathlib import Path
from typing import Final

from nsq_conformance.attached import Attached, is_address
from nsq_conformance.daemon_process import DaemonFailed, DaemonProcess, installed
from nsq_conformance.nsqadmin_process import NsqadminProcess
from nsq_conformance.nsqd_process import NsqdProcess
from nsq_conformance.nsqlookupd_process import NsqlookupdProcess
from nsq_conformance.raw_client import sized

VERSION: Final = "1.3.0"
"""The version of NSQ that the tests describe."""

_EXTRA: Final = re.compile(r"(?P<requirement>(?P<name>[\w.-]+).*?) *; *extra == ['\"]conformance['\"]")
_ADDRESS: Final = re.compile(r"[^\s,/=]+:\d+")
_ANSWER_SECONDS: Final = 10.0
_BOTH: Final = "--{}=HOST:TCP-PORT,HOST:HTTP-PORT."
_TLS: Final = "{} requires TLS, which most tests do not use: start it without --tls-required."
_QUESTIONS: Final = {
    "nsqd": b"  V2IDENTIFY\n" + sized(b'{"feature_negotiation":true}') + b"NOP\nPREFLIGHT\n",
    "nsqlookupd": b"  V1PING\nPREFLIGHT\n",
}
"""Sent to a daemon's TCP port; the last command is unknown, so that the daemon closes the connection."""


class Unusable(Exception):
    """The tests cannot be run; the text is a sentence for the user."""


def check_packages() -> None:
    """Raise Unusable, with the command that installs them, if packages of the extra ``conformance`` are missing."""
    extra = filter(None, map(_EXTRA.fullmatch, metadata.requires("nsq_compat") or ()))
    missing = [found["requirement"] for found in extra if not _is_installed(found["name"])]
    if missing:
        command = shlex.join([sys.executable, "-m", "pip", "install", *missing])
        raise Unusable(f"Packages are missing. Install them with:  {command}")


def _is_installed(package: str) -> bool:
    try:
        return bool(metadata.version(package))
    except metadata.PackageNotFoundError:
        return False


def check_file(file: Path | None) -> None:
    """Raise Unusable if the file cannot be written."""
    if file is None:
        return
    folder = file.absolute().parent
    if not folder.is_dir():
        raise Unusable(f"Cannot write {file}: there is no folder {folder}.")
    if file.is_dir() or not os.access(file if file.exists() else folder, os.W_OK):
        raise Unusable(f"Cannot write {file}: {'it is a folder' if file.is_dir() else 'permission denied'}.")


def check_daemons(given: Mapping[str, str]) -> None:
    """Start each daemon that was given, and nsqd always, or connect to it. Raises Unusable if one cannot be tested."""
    for name, text in given.items():
        if text:
            _check_daemon(name, text)
        elif name == "nsqd":
            _check_daemon(name, os.environ.get("NSQD_COMMAND") or installed(name))


def _check_daemon(name: str, text: str) -> None:
    if is_address(name, text):
        _check_conversation(name, Attached(text))
        return
    try:
        program = next(iter(shlex.split(text)), "")
    except ValueError as error:
        raise Unusable(f"The command line of {name} cannot be read ({error}): {text}") from error
    if shutil.which(program) is None:
        advice = f" To test a running {name}: {_BOTH.format(name)}" if _ADDRESS.fullmatch(text) else ""
        raise Unusable(f"There is no program {program!r} for --{name}.{advice}")
    with tempfile.TemporaryDirectory() as folder:
        kinds: dict[str, Callable[[], DaemonProcess]] = {
            "nsqd": lambda: NsqdProcess(text, Path(folder)),
            "nsqlookupd": lambda: NsqlookupdProcess(text),
            "nsqadmin": lambda: NsqadminProcess(text, options=["--nsqd-http-address=127.0.0.1:1"]),
        }
        try:
            with kinds[name]() as daemon:
                _check_conversation(name, daemon)
        except DaemonFailed as error:
            raise Unusable(str(error)) from error


def _check_conversation(name: str, daemon: DaemonProcess) -> None:
    version = _check_http(name, daemon)
    if name in _QUESTIONS:
        _check_tcp(name, daemon.tcp_address)
    if version not in (VERSION, None):
        print(f"nsq-conformance: this {name} is version {version}; the tests are for {VERSION}.", file=sys.stderr)


def _check_http(name: str, daemon: DaemonProcess) -> str | None:
    """The version that the daemon reports over HTTP."""
    address = daemon.http_address
    try:
        answer = daemon.asks("GET", "/ping" if name == "nsqadmin" else "/info")
    except (HTTPException, ConnectionResetError) as error:
        port = f"its TCP port? Give {_BOTH.format(name)}" if name in _QUESTIONS else "an HTTP port?"
        raise Unusable(f"{address} does not answer HTTP requests. Is this {port}") from error
    except OSError as error:
        raise Unusable(f"Cannot connect to the HTTP port of {name} at {address}: {error}.") from error
    if answer.status == 403 and b"TLS_REQUIRED" in answer.body:
        raise Unusable(
            f"{name} at {address} requires TLS, which most tests do not use: start it without --tls-required."
        )
    if name == "nsqadmin":
        return None
    try:
        about = answer.json()
        is_nsqd, version = "tcp_port" in about, about["version"]
    except (ValueError, TypeError, KeyError) as error:
        raise Unusable(f"{address} answers HTTP, but not as {name} does: status {answer.status} for /info.") from error
    if is_nsqd != (name == "nsqd"):
        raise Unusable(f"{address} answers HTTP, but it is not an {name}.")
    return str(version)


def _check_tcp(name: str, address: str) -> None:
    host, _, port = address.rpartition(":")
    answer = b""
    try:
        with socket.create_connection((host, int(port)), timeout=_ANSWER_SECONDS) as connection:
            connection.sendall(_QUESTIONS[name])
            while data := connection.recv(1 << 16):
                answer += data
    except (ConnectionResetError, TimeoutError):
        pass
    except OSError as error:
        raise Unusable(f"Cannot connect to the TCP port of {name} at {address}: {error}.") from error
    if answer.startswith(b"HTTP/"):
        raise Unusable(f"{address} speaks HTTP. Is this {name}'s TCP port? Give {_BOTH.format(name)}")
    if name == "nsqd" and b"TLS required" in answer:
        raise Unusable(_TLS.format(f"nsqd at {address}"))
    if name == "nsqd" and b'"auth_required":true' in answer:
        raise Unusable(
            f"nsqd at {address} requires AUTH, which most tests do not use: start it without --auth-http-address."
        )
    if b"PREFLIGHT" not in answer:
        raise Unusable(f"{address} does not answer as the TCP port of {name} does.")
