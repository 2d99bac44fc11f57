"""Commands as values: what the command reader makes of a client's bytes.

Commands that come in runs are one value for the whole run: a consumer sends hundreds of FINs between two reads, and a
producer may pipeline as many PUBs.
"""

from collections.abc import Sequence
from typing import NamedTuple

from nsq_compat.protocol.command_table import CommandSpec


class Finish(NamedTuple):
    """A run of well-formed ``FIN <id>`` lines; `ids` are the 16 ASCII bytes each."""

    ids: Sequence[bytes]


class Publish:
    """A run of PUBs to one topic, each of which is owed its own reply; or one MPUB, which is owed a single one."""

    # Hot: one is made for every synchronous PUB. Compiled, a dataclass takes eight times the instructions.
    __slots__ = ("bodies", "spec", "tokens")

    def __init__(self, spec: CommandSpec, tokens: list[bytes], bodies: Sequence[bytes]) -> None:
        self.spec = spec
        self.tokens = tokens
        self.bodies = bodies

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Publish):
            return NotImplemented
        return (self.spec, self.tokens, self.bodies) == (other.spec, other.tokens, other.bodies)


class Line(NamedTuple):
    """Any other command: its line cut at the spaces, and the sized body behind it where the command has one."""

    spec: CommandSpec
    tokens: list[bytes]
    body: bytes


Command = Finish | Publish | Line
