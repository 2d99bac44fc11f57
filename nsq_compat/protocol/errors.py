"""What can go wrong between bytes and values, as exceptions that carry NSQ's error codes.

An error knows the bytes its error frame holds; exactly one place (the session) turns it into a frame. Whose fault
it is and what follows shows in the type: after a ``ClientError`` the connection lives on, after a
``FatalClientError`` the frame is sent and the connection closed, a ``SilentClose`` says nothing at all.

The texts are NSQ's own, because clients compare them.
"""

from typing import Final

E_INVALID: Final = "E_INVALID"
E_BAD_TOPIC: Final = "E_BAD_TOPIC"
E_BAD_CHANNEL: Final = "E_BAD_CHANNEL"
E_BAD_BODY: Final = "E_BAD_BODY"
E_BAD_MESSAGE: Final = "E_BAD_MESSAGE"
E_BAD_PROTOCOL: Final = "E_BAD_PROTOCOL"
E_PUB_FAILED: Final = "E_PUB_FAILED"
E_MPUB_FAILED: Final = "E_MPUB_FAILED"
E_DPUB_FAILED: Final = "E_DPUB_FAILED"
E_FIN_FAILED: Final = "E_FIN_FAILED"
E_REQ_FAILED: Final = "E_REQ_FAILED"
E_TOUCH_FAILED: Final = "E_TOUCH_FAILED"
E_SUB_FAILED: Final = "E_SUB_FAILED"
E_IDENTIFY_FAILED: Final = "E_IDENTIFY_FAILED"
E_AUTH_FIRST: Final = "E_AUTH_FIRST"
E_AUTH_FAILED: Final = "E_AUTH_FAILED"
E_AUTH_DISABLED: Final = "E_AUTH_DISABLED"
E_UNAUTHORIZED: Final = "E_UNAUTHORIZED"


class NsqError(Exception):
    """An error a client is told about: one of the codes above and a description in NSQ's words.

    A description may echo what the client sent. Given as bytes it is kept byte for byte; ``description`` then
    shows undecodable bytes as surrogate escapes.
    """

    def __init__(self, code: str, description: str | bytes = "") -> None:
        if isinstance(description, bytes):
            description = description.decode("utf-8", "surrogateescape")
        super().__init__(code, description)
        self.code = code
        self.description = description

    @property
    def data(self) -> bytes:
        """What the error frame holds: code, space, description; the code alone when there is no description."""
        text = f"{self.code} {self.description}" if self.description else self.code
        return text.encode("utf-8", "surrogateescape")

    def __str__(self) -> str:
        """The same for a log line: always printable as UTF-8, undecodable bytes as ``\\xNN``."""
        return self.data.decode("utf-8", "backslashreplace")


class ClientError(NsqError):
    """Only this command failed; the connection lives on."""


class FatalClientError(NsqError):
    """The error frame is sent, then the connection is closed."""


class SilentClose(Exception):
    """The connection is closed without a frame: an over-long line, the end of input, a deadline between commands."""


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


def without_secrets(text: str) -> str:
    """An address, or an argument that ends in one, without user and password and without its query.

    `https://me:pw@host/auth?key=1` is shown as `https://host/auth`; what is no URL comes back as it is.
    """
    scheme, separator, rest = text.partition("://")
    return f"{scheme}{separator}{rest.partition('?')[0].rpartition('@')[2]}" if separator else text
