"""``nsq_nodes``: lay out several nsqd on one machine, for machines where one CPU is not enough.

    nsq_nodes --count=4                        print the command line of each node
    nsq_nodes --count=4 --write=/etc/nsqd      write a file for each node, which the unit nsqd@.service reads

Each node gets ports, a data path and a node id of its own. All other options are common to the nodes, and are given to
nsqd. A file that exists is kept as it is, because a node must keep its ports, its data path and its id; so a larger
``--count`` adds nodes.
"""

import os
import re
import shlex
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import attrgetter
from socket import gethostname
from typing import Final

from nsq_compat.cli.kinds import INTEGER, STRING
from nsq_compat.cli.options import node_id, option
from nsq_compat.cluster.nodes import join_host_port
from nsq_compat.log.data_path import reason
from nsq_compat.tools.program import ProgramOptions, Refused, console_script, refuse

VARIABLE: Final = "NSQD_NODE_OPTIONS"
_MAX_NODES: Final = 100
_NODE_IDS: Final = 1024
_LAST_PORT: Final = 65535
_PROTOCOLS: Final = ("tcp", "http", "https")
_PORTS: Final = len(_PROTOCOLS)
"""Of a node, one after the other."""
_FILE: Final = re.compile(r"([1-9][0-9]{0,2})\.env", re.ASCII)
_PLAIN: Final = re.compile(r"[A-Za-z0-9_./:%+,@=\[\]-]+")
"""What neither a shell nor systemd splits, expands or unquotes."""


@dataclass(kw_only=True)
class Options(ProgramOptions):
    program = "nsq_nodes"
    ignores_arguments = False
    count: int = option(INTEGER, 0, "nodes on this machine; by default one for each CPU")
    write: str = option(STRING, "", "directory for a file for each node; by default command lines are printed")
    data_path: str = option(STRING, "/var/lib/nsqd", "directory with the data paths of the nodes: 1, 2 and so on")
    listen_address: str = option(STRING, "0.0.0.0", "address on which the nodes listen")
    broadcast_address: str = option(
        STRING, "", "host that nsqlookupd and /info give to clients; by default that of the common options"
    )
    first_port: int = option(INTEGER, 4150, "TCP port of the first node; HTTP and HTTPS have the next two")
    port_step: int = option(INTEGER, 100, "from the ports of one node to those of the next")
    first_node_id: int = option(
        INTEGER, -1, "node id of the first node, and the next ones follow; by default derived from the host name"
    )


@dataclass(frozen=True, slots=True)
class Node:
    """One nsqd of this machine, by its flags, such as ``--node-id=617``."""

    number: int
    words: tuple[str, ...]

    @property
    def id(self) -> int:
        return int(self.flag("node-id"))

    def flag(self, name: str) -> str:
        found = [word.partition("=")[2] for word in self.words if word.startswith(f"--{name}=")]
        return found[-1] if found else ""

    def owned(self) -> set[str]:
        """What no two nodes may share."""
        ports = {self.flag(f"{protocol}-address").rpartition(":")[2] for protocol in _PROTOCOLS}
        owned = {f"node id {self.id}", f"data path {self.flag('data-path')}", *(f"port {port}" for port in ports)}
        return owned - {"data path ", "port "}

    def __str__(self) -> str:
        addresses = (f"{protocol.upper()} {self.flag(f'{protocol}-address')}" for protocol in _PROTOCOLS)
        return f"node {self.number}: {', '.join(addresses)}, data path {self.flag('data-path')}, node id {self.id}"


@console_script(Options)
def main(options: Options) -> None:
    count = options.count or len(os.sched_getaffinity(0))
    last_port = options.first_port + (count - 1) * options.port_step + _PORTS - 1
    texts = {"--data-path": options.data_path, "--listen-address": options.listen_address}
    if options.broadcast_address:
        texts["--broadcast-address"] = options.broadcast_address
    refuse(
        (not 1 <= count <= _MAX_NODES, f"--count must be [1,{_MAX_NODES}]"),
        (options.port_step < _PORTS, f"--port-step must be at least {_PORTS}, because a node has {_PORTS} ports"),
        (options.first_port < 1 or last_port > _LAST_PORT, f"ports must be [1,{_LAST_PORT}]: see --first-port"),
        (
            options.first_node_id != -1 and not 0 <= options.first_node_id <= _NODE_IDS - count,
            f"node ids must be [0,{_NODE_IDS}): see --first-node-id",
        ),
        *(
            (not _PLAIN.fullmatch(text), f"{flag} is empty, or has a character to quote")
            for flag, text in texts.items()
        ),
    )
    try:
        nodes = _existing(options.write) if options.write else []
        for number in sorted(set(range(1, count + 1)) - {node.number for node in nodes}):
            nodes.append(_make(options, number, nodes))
        for node in sorted(nodes, key=attrgetter("number")):
            if options.write:
                print(f"{node} ({_written(options.write, node)})")
            else:
                print(f"nsqd {' '.join(node.words)}")
    except OSError as error:
        raise Refused(f"{error.filename or options.write}: {reason(error)}") from None


def _make(options: Options, number: int, others: Sequence[Node]) -> Node:
    """A new node. Raises ``Refused`` if one of the `others` has its ports, its data path or its id."""
    tcp = options.first_port + (number - 1) * options.port_step
    host = join_host_port(options.listen_address.strip("[]"), tcp).rpartition(":")[0]
    taken = {node.id for node in others}
    words = [
        f"--node-id={_new_id(options.first_node_id, number, taken)}",
        f"--data-path={os.path.join(options.data_path, str(number))}",
        *(f"--{protocol}-address={host}:{tcp + index}" for index, protocol in enumerate(_PROTOCOLS)),
        # Also if the options that are common to all nodes have ports of one.
        f"--broadcast-tcp-port={tcp}",
        f"--broadcast-http-port={tcp + 1}",
    ]
    if options.broadcast_address:
        words.append(f"--broadcast-address={options.broadcast_address}")
    node = Node(number, tuple(words))
    for other in others:
        if shared := node.owned() & other.owned():
            raise Refused(f"nodes {other.number} and {number} would have the same {min(shared)}; nothing was written")
    return node


def _new_id(first: int, number: int, taken: set[int]) -> int:
    if first >= 0:
        return first + number - 1
    # The first node has nsqd's default. The others are derived from the host name too: the next numbers might well be
    # those of other machines.
    host = gethostname()
    found = node_id(host if number == 1 else f"{host}/{number}")
    while found in taken:
        found = (found + 1) % _NODE_IDS
    return found


def _existing(folder: str) -> list[Node]:
    """The nodes that have a file. Raises ``Refused`` if one cannot be read as such."""
    nodes = []
    for name in os.listdir(folder):
        if not (match := _FILE.fullmatch(name)):
            continue
        path = os.path.join(folder, name)
        with open(path, encoding="utf-8") as file:
            lines = [line.strip() for line in file.read().splitlines()]
        values = [line.partition("=")[2].strip("\"'") for line in lines if line.startswith(f"{VARIABLE}=")]
        try:
            nodes.append(Node(int(match[1]), tuple(shlex.split(values[-1]))))
            _ = nodes[-1].id
        except (IndexError, ValueError):
            raise Refused(f"{path} has no {VARIABLE}=... with a --node-id; nothing was written") from None
    return nodes


def _written(folder: str, node: Node) -> str:
    """Write a node's file, unless it exists; returns which."""
    path = os.path.join(folder, f"{node.number}.env")
    text = (
        f"# The options of nsqd@{node.number}.service alone. nsq_nodes wrote this file, and keeps it as it is.\n"
        f"{VARIABLE}={' '.join(node.words)}\n"
    )
    if os.path.lexists(path):
        return f"kept {path}"
    descriptor, temporary = tempfile.mkstemp(dir=folder, prefix=".nsq_nodes-")
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            os.fchmod(descriptor, 0o644)
        os.rename(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    return f"wrote {path}"
