"""GET and PUT /config/:opt: show options, and change some of them while nsqd runs. `drain` stops nsqd."""

import json
from collections.abc import Callable, Mapping
from types import MappingProxyType

from nsq_compat.policy.policies import PolicyError
from nsq_compat.session.http_message import Admission, Request, Response
from nsq_compat.web import responses
from nsq_compat.web.nsqd_service import NsqdService
from nsq_compat.web.responses import ApiError, error


class Configuration:
    def __init__(self, service: NsqdService) -> None:
        self._service = service
        self.admission = Admission(service.options.max_msg_size, error(413, "INVALID_VALUE"))
        self._writable: Mapping[str, Callable[[bytes], None]] = MappingProxyType(
            {
                "nsqlookupd_tcp_addresses": self._set_lookupd_addresses,
                "log_level": self._set_log_level,
                "drain": self._drain,
                "policies": self._set_policies,
            }
        )

    def show(self, request: Request) -> Response:
        return self._value(_name_of(request))

    def change(self, request: Request) -> Response:
        name = _name_of(request)
        if not request.body:
            raise ApiError(413, "INVALID_VALUE")
        if name not in self._writable:
            raise ApiError(400, "INVALID_OPTION")
        try:
            self._writable[name](request.body)
        except PolicyError as failure:  # docs/differences.md: policies
            raise ApiError(400, f"INVALID_VALUE: {failure}") from None
        except (ValueError, RecursionError):  # RecursionError: deeply nested JSON
            raise ApiError(400, "INVALID_VALUE") from None
        return self._value(name)

    def _value(self, name: str) -> Response:
        try:
            value = self._service.config_value(name)
        except KeyError:
            raise ApiError(400, "INVALID_OPTION") from None
        # nsqd: strings are shown raw, everything else as JSON.
        return responses.text(value.encode("utf-8")) if isinstance(value, str) else responses.json(value)

    def _set_lookupd_addresses(self, body: bytes) -> None:
        addresses = json.loads(body.decode("utf-8"))
        if addresses is not None and not (
            isinstance(addresses, list) and all(isinstance(address, str) for address in addresses)
        ):
            raise ValueError("not a list of strings")
        self._service.set_lookupd_addresses(addresses)

    def _drain(self, body: bytes) -> None:
        # docs/differences.md: drain
        if body.strip() != b"true":
            raise ValueError("a drain cannot be undone")
        self._service.drain()

    def _set_policies(self, body: bytes) -> None:
        self._service.set_policies(json.loads(body.decode("utf-8")))

    def _set_log_level(self, body: bytes) -> None:
        self._service.set_log_level(body.decode("utf-8"))


def _name_of(request: Request) -> str:
    return request.path.rpartition("/")[2]
