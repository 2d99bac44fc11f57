"""An nsqd as described by an entry of nsqlookupd's /nodes or /lookup, or by its own /info."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from nsq_compat.cluster import reading
from nsq_compat.cluster.reading import InvalidAnswer
from nsq_compat.protocol.names import address_error, canonical_host, is_host, is_port, printable

_MAX_REGISTRATIONS: Final = 10_000
"""Of a listing, valid or not. An answer of some megabytes may have millions."""
_ADDRESS: Final = re.compile(r"(?:(?P<name>[^:\[\]]+)|\[(?P<ipv6>[^\[\]]+)\]):(?P<port>[0-9]{1,5})", re.ASCII)
_VERSION: Final = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(?:-([0-9A-Za-z.-]+))?(?:\+[0-9A-Za-z.-]+)?")


@dataclass(slots=True, kw_only=True)
class Node:
    broadcast_address: str = ""
    hostname: str = ""
    tcp_port: int = 0
    http_port: int = 0
    version: str = ""
    topology_zone: str = ""
    topology_region: str = ""
    remote_address: str = ""
    remote_addresses: list[str] = field(default_factory=list)
    """``<nsqlookupd>/<address of the connection>`` for each nsqlookupd that knows the node."""
    topics: dict[str, bool] = field(default_factory=dict)
    """Names of topics, and whether the node is tombstoned for each."""
    out_of_date: bool = False
    """Another node has a newer version."""
    is_remembered: bool = False
    """The nsqlookupds that listed the node do not answer now. All other fields are from their last answers."""

    @property
    def http_address(self) -> str:
        return join_host_port(self.broadcast_address, self.http_port)

    @property
    def tcp_address(self) -> str:
        return join_host_port(self.broadcast_address, self.tcp_port)

    @property
    def listed_by(self) -> set[str]:
        """The HTTP addresses of the nsqlookupds in `remote_addresses`."""
        parts = [listing.rpartition("://") for listing in self.remote_addresses]
        return {f"{scheme}{separator}{rest.partition('/')[0]}" for scheme, separator, rest in parts}

    def __str__(self) -> str:
        return self.http_address


def canonical_address(text: str) -> tuple[str, int] | None:
    """Host and port, equal for all spellings of a host. None if the text is not just ``host:port``."""
    match = _ADDRESS.fullmatch(text)
    if match is None:
        return None
    host, port = match["name"] or match["ipv6"], int(match["port"])
    if not is_host(host) or not is_port(port) or (match["ipv6"] is not None) != (":" in host):
        return None
    return canonical_host(host), port


def join_host_port(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def read_node(value: object) -> Node:
    """The node of an /info, which may lack fields. Its address may be invalid. Raises `InvalidAnswer`."""
    return _read_fields(reading.mapping(value))


def read_registrations(value: object) -> tuple[list[Node], list[str]]:
    """The nodes of an nsqlookupd's listing, and the reasons of skipped entries. Raises `InvalidAnswer`.

    An nsqlookupd does not check what an nsqd announces, so one invalid entry must not hide the others.
    """
    nodes, skipped = [], []
    entries = reading.array(lambda each: each, value)
    for entry in entries[:_MAX_REGISTRATIONS]:
        try:
            node = _read_fields(reading.mapping(entry))
            problem = address_error(node.broadcast_address, TCP=node.tcp_port, HTTP=node.http_port)
        except InvalidAnswer as error:
            problem = str(error).removeprefix("invalid answer: ")
        if problem:
            skipped.append(f"{_name_of(entry)}: {problem}")
        else:
            nodes.append(node)
    if len(entries) > _MAX_REGISTRATIONS:
        skipped.append(f"{len(entries) - _MAX_REGISTRATIONS} of {len(entries)} nsqds: so many are not read")
    return nodes, skipped


def _name_of(entry: object) -> str:
    """Text that lets an operator find the nsqd of an invalid entry."""
    fields = entry if isinstance(entry, dict) else {}
    names = [f"{key} {printable(fields[key])}" for key in ("hostname", "remote_address") if fields.get(key)]
    return f"nsqd ({', '.join(names)})" if names else "an nsqd"


def _read_fields(fields: Mapping[str, object]) -> Node:
    names = reading.array(reading.text, fields.get("topics"))
    tombstones = reading.array(reading.boolean, fields.get("tombstones"))
    # Tombstones may be missing, which crashes Go's nsqadmin.
    tombstones += [False] * (len(names) - len(tombstones))
    topics = dict(sorted(zip(names, tombstones, strict=False)))
    return reading.record(Node, fields, out_of_date=False, is_remembered=False, topics=topics)


def version_key(version: str) -> tuple[int, int, int, bool, str]:
    """A key to compare versions. Invalid versions are 0.0.0."""
    match = _VERSION.fullmatch(version)
    if match is None or len(version) > 100:
        return (0, 0, 0, True, "")
    major, minor, patch, prerelease = match.groups()
    return (int(major), int(minor), int(patch), prerelease is None, prerelease or "")


def mark_out_of_date(nodes: Sequence[Node]) -> None:
    newest = max((version_key(node.version) for node in nodes), default=version_key(""))
    for node in nodes:
        node.out_of_date = version_key(node.version) < newest
