"""Quote client bytes for an error text the way Go's ``%q`` does, since NSQ's descriptions print names that way.

The result is valid UTF-8 on one line, whatever the bytes were: what cannot be printed becomes an escape, and a byte
that is not part of valid UTF-8 is escaped by itself.
"""

from typing import Final

_SHORT_ESCAPES: Final = {
    '"': r"\"",
    "\\": r"\\",
    "\a": r"\a",
    "\b": r"\b",
    "\f": r"\f",
    "\n": r"\n",
    "\r": r"\r",
    "\t": r"\t",
    "\v": r"\v",
}
_FIRST_ESCAPED_BYTE: Final = 0xDC80  # where the surrogateescape handler puts byte 0x80, and so on to 0xFF
_LAST_ESCAPED_BYTE: Final = 0xDCFF


def quote(raw: bytes) -> str:
    """``raw`` between double quotes, in Go's escapes: ``\\xNN`` for bytes, ``\\uNNNN`` for unprintable characters."""
    return '"' + "".join(map(_escape, raw.decode("utf-8", "surrogateescape"))) + '"'


def _escape(character: str) -> str:
    if character in _SHORT_ESCAPES:
        return _SHORT_ESCAPES[character]
    # Python and Go agree on "printable": letters, marks, numbers, punctuation, symbols and the ASCII space.
    if character.isprintable():
        return character
    code = ord(character)
    if code < 0x20 or code == 0x7F:
        return f"\\x{code:02x}"
    if _FIRST_ESCAPED_BYTE <= code <= _LAST_ESCAPED_BYTE:
        return f"\\x{code - 0xDC00:02x}"
    if code < 0x10000:
        return f"\\u{code:04x}"
    return f"\\U{code:08x}"
