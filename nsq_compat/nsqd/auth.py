"""Asks the servers of --auth-http-address for a client's permissions."""

import random
import time
from collections.abc import Sequence
from urllib.parse import urlencode

import gevent

from nsq_compat.nsqd.http_calls import CallFailed, HttpCalls
from nsq_compat.protocol.errors import without_secrets
from nsq_compat.protocol.go_json import dumps
from nsq_compat.session.authorization import MAX_ANSWER_BYTES, AuthFailed, Credentials, Grants, read_answer


class AuthServers:
    """`method` is ``get`` or ``post``."""

    def __init__(self, addresses: Sequence[str], method: str, calls: HttpCalls) -> None:
        self._addresses = addresses
        self._method = method
        self._calls = calls

    def authorize(self, credentials: Credentials) -> Grants:
        """The first usable answer. Waits, and lets others run. Raises ``AuthFailed``."""
        # nsqd: the servers share the load, and replace each other.
        first = random.randrange(len(self._addresses))
        failures = []
        for address in (*self._addresses[first:], *self._addresses[:first]):
            try:
                return _read_in_thread(self._ask(url_of(address), credentials))
            except (AuthFailed, CallFailed) as error:
                failures.append(f"failed to auth against {without_secrets(address)} - {error}")
        raise AuthFailed("; ".join(failures))

    def _ask(self, url: str, credentials: Credentials) -> bytes:
        # nsqd: these names, in this order.
        parameters: dict[str, str | bytes] = {
            "common_name": credentials.common_name,
            "remote_ip": credentials.remote_ip,
            "secret": credentials.secret,
            "tls": "true" if credentials.tls else "false",
        }
        if self._method == "post":
            return self._calls.post(url, _json(parameters), MAX_ANSWER_BYTES)
        return self._calls.get(f"{url}?{urlencode(parameters)}", MAX_ANSWER_BYTES)


def _read_in_thread(body: bytes) -> Grants:
    """Run ``read_answer`` in a thread, because it may compile thousands of patterns."""
    now = time.monotonic()

    def outcome() -> Grants | AuthFailed:
        # An exception that leaves a thread is printed by gevent with a traceback, although it is handled.
        try:
            return read_answer(body, now)
        except AuthFailed as error:
            return AuthFailed(str(error))

    result = gevent.get_hub().threadpool.apply(outcome)
    if isinstance(result, AuthFailed):
        raise AuthFailed(str(result))
    return result


def _json(parameters: dict[str, str | bytes]) -> bytes:
    # nsqd: like a form, every name with a list of values.
    return dumps(
        {
            name: [value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else value]
            for name, value in parameters.items()
        }
    ).encode("utf-8")


def url_of(address: str) -> str:
    """The URL of an address as the option has it: a URL, or host:port."""
    return address if "://" in address else f"http://{address}/auth"
