"""GET and PUT /config/<option>, for addresses inside `--allow-config-from-cidr`; PUT only for admins."""

import ipaddress
import json
from typing import Final

from flask import Blueprint, Response, request

from nsq_compat.protocol.go_json import dumps
from nsq_compat.web.admin.access import require, service
from nsq_compat.web.admin.users import Role
from nsq_compat.web.application import JSON, V1, ApiError

configuration = Blueprint("configuration", __name__)

_MAX_VALUE_BYTES: Final = 1024 * 1024


@configuration.before_request
def allow() -> None:
    cidr = service().options.allow_config_from_cidr
    if cidr:
        try:
            peer = ipaddress.ip_address(request.remote_addr or "")
        except ValueError:
            raise ApiError(400, "INVALID_REMOTE_ADDR") from None
        if peer not in ipaddress.ip_network(cidr, strict=False):
            raise ApiError(403, "FORBIDDEN")


@configuration.get("/config/<name>")
def show(name: str) -> Response:
    try:
        value = service().config_value(name)
    except KeyError:
        raise ApiError(400, "INVALID_OPTION") from None
    # nsqadmin: strings are shown raw, everything else as JSON.
    if isinstance(value, str):
        return Response(value, 200, [("Content-Type", "text/plain; charset=utf-8"), V1])
    return Response(dumps(value), 200, [JSON, V1])


@configuration.put("/config/<name>")
def change(name: str) -> Response:
    require(Role.ADMIN)
    body = request.get_data()
    if not 0 < len(body) <= _MAX_VALUE_BYTES:
        raise ApiError(413, "INVALID_VALUE")
    try:
        if name == "nsqlookupd_http_addresses":
            service().set_lookupd_addresses(_addresses(body))
        elif name == "log_level":
            service().set_log_level(body.decode("utf-8"))
        else:
            raise ApiError(400, "INVALID_OPTION")
    except (ValueError, RecursionError):
        raise ApiError(400, "INVALID_VALUE") from None
    return show(name)


def _addresses(body: bytes) -> list[str]:
    value = json.loads(body)
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(address, str) for address in value):
        raise ValueError("not a list of strings")
    return value
