"""The names under which a daemon answers over HTTP: protection against DNS rebinding.

A page of another site can change the address of its own name to that of a daemon. Its scripts then reach the daemon
from the visitor's browser, and the browser regards the daemon as a part of that site. The header Host of such requests
has the name of the site, which must be a name that the attacker owns. IP addresses and names without a dot are
therefore accepted: the first need no DNS, the second cannot be registered in it.
"""

import ipaddress
import logging
import re
import socket
from collections.abc import Iterable
from typing import Final

from nsq_compat.session.http_message import HttpHandler, Request, Response
from nsq_compat.web.application import error, log_access

log = logging.getLogger(__name__)

ANY: Final = "*"
"""In place of a name: all names are allowed."""
OPEN_PATHS: Final = ("/ping", "/livez", "/readyz")
"""Probes, which are answered under any name."""
_MAX_WARNINGS: Final = 100
_HOST: Final = re.compile(r"(?:\[(?P<ip6>[^\[\]]*)\]|(?P<name>[^:\[\]]*))(?::[0-9]*)?")
_NAME: Final = re.compile(r"[a-z0-9_-]{1,63}(?:\.[a-z0-9_-]{1,63})*")


def allowed_name(text: str) -> str:
    """A value of `--allowed-host` as `HostCheck` compares it. Raises ValueError."""
    name = text.strip().lower().removesuffix(".")
    if name != ANY and not _NAME.fullmatch(name):
        raise ValueError("it must be a host name without scheme and port, or *")
    return name


class HostCheck:
    """An HTTP handler in front of another one, which answers 421 to requests for the name of another site.

    It lets pass: requests without Host (no browser sends them), IP addresses, names without a dot, the host of
    `listener` (``host:port`` as in the options), the machine's name, and `allowed` (see `allowed_name`). Paths in
    `open_paths` pass always. With `authorized_pass`, so do requests with an Authorization header: use that where the
    handler refuses wrong ones, because a page of another site does not know a token. Clients then need no configuration
    for the names under which they reach the daemon.

    An ``ImmediateHandler`` beside `handler` is not checked.
    """

    def __init__(
        self,
        handler: HttpHandler,
        program: str,
        listener: str,
        allowed: Iterable[str] = (),
        *,
        open_paths: Iterable[str] = OPEN_PATHS,
        authorized_pass: bool = False,
    ) -> None:
        self.admit = handler.admit
        self._handler = handler
        self._program = program
        own = (listener.rpartition(":")[0], socket.gethostname())
        self._names = {name.lower().removesuffix(".") for name in (*own, *allowed)}
        self._open_paths = frozenset(open_paths)
        self._authorized_pass = authorized_pass
        self._warned: set[str] = set()

    def respond(self, request: Request) -> Response:
        host = _HOST.fullmatch(request.headers.get(b"host", b"").decode("latin-1").strip().lower())
        name = (host["ip6"] or host["name"]).removesuffix(".") if host is not None else "?"
        if (
            self._is_allowed(name)
            or request.path in self._open_paths
            or (self._authorized_pass and b"authorization" in request.headers)
        ):
            return self._handler.respond(request)
        response = self._refusal(name)
        log_access(request, response.status, 0)
        return response

    def _is_allowed(self, name: str) -> bool:
        if not name or name in self._names or ANY in self._names:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return "." not in name and _NAME.fullmatch(name) is not None
        return True

    def _refusal(self, name: str) -> Response:  # docs/differences.md: hosts
        if not _NAME.fullmatch(name):
            return error(421, "INVALID_HOST: the header Host is not a host name or IP address")
        text = (
            f"{self._program} does not answer to the name {name}, because pages of other sites can use any name to "
            "reach it (DNS rebinding). "
        )
        if self._authorized_pass:
            text += "Under this name, a request needs a token: Authorization: Bearer"
        else:
            text += (
                f"If {name} is one of its names, start it with --allowed-host={name}, or add the name to allowed_hosts "
                "in the config file"
            )
        if name not in self._warned and len(self._warned) < _MAX_WARNINGS:
            self._warned.add(name)
            log.warning("refused a request: %s", text)
        return error(421, f"HOST_NOT_ALLOWED: {text}")
