"""Which topic and channel names are allowed.

One rule for both: letters, digits, ``.``, ``_`` and ``-``, then perhaps ``#ephemeral``; 1 to 64 bytes in all.
A name that passes is ASCII, so everything above this layer may hold it as ``str``.
"""

import re
from typing import Final

MAX_NAME_LENGTH: Final = 64
EPHEMERAL_SUFFIX: Final = "#ephemeral"

_RULE: Final = rf"[.a-zA-Z0-9_-]+(?:{EPHEMERAL_SUFFIX})?"
# Called for every PUB line: the bound methods save an attribute lookup each time. fullmatch, because "$" would also
# accept a name with a newline behind it.
_matches_text: Final = re.compile(_RULE).fullmatch
_matches_bytes: Final = re.compile(_RULE.encode("ascii")).fullmatch


def is_valid_name(name: bytes | str) -> bool:
    """True for a legal topic or channel name, its length counted with the ``#ephemeral`` suffix."""
    if len(name) > MAX_NAME_LENGTH:
        return False
    if isinstance(name, bytes):
        return _matches_bytes(name) is not None
    return _matches_text(name) is not None


def is_ephemeral(name: str) -> bool:
    """True when a topic or channel of this (valid) name lives only as long as it is used."""
    return name.endswith(EPHEMERAL_SUFFIX)
