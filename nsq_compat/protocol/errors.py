"""Protocol errors, and the quoting of untrusted text in errors and logs.

An error carries one of NSQ's codes and a description in NSQ's words, because clients compare them. The session turns it
into an error frame. Its class determines what follows: the connection stays open after a ``ClientError``, is closed
after the frame of a ``FatalClientError``, and is closed without a frame by a ``SilentClose``.
"""

import re
from typing import Final
from urllib.parse import unquote_plus

E_INVALID: Final = "E_INVALID"
E_BAD_TOPIC: Final = "E_BAD_TOPIC"
E_BAD_CHANNEL: Final = "E_BAD_CHANNEL"
E_BAD_BODY: Final = "E_BAD_BODY"
E_BAD_MESSAGE: Final = "E_BAD_MESSAGE"
E_BAD_PROTOCOL: Final = "E_BAD_PROTOCOL"
E_FIN_FAILED: Final = "E_FIN_FAILED"
E_REQ_FAILED: Final = "E_REQ_FAILED"
E_TOUCH_FAILED: Final = "E_TOUCH_FAILED"
E_IDENTIFY_FAILED: Final = "E_IDENTIFY_FAILED"
E_AUTH_FIRST: Final = "E_AUTH_FIRST"
E_AUTH_FAILED: Final = "E_AUTH_FAILED"
E_AUTH_DISABLED: Final = "E_AUTH_DISABLED"
E_UNAUTHORIZED: Final = "E_UNAUTHORIZED"
E_NOT_MIRRORED: Final = "E_NOT_MIRRORED"
"""Ours, of HPUB and HMPUB: the message is in the log and may be delivered, but the standby does not have it."""


class NsqError(Exception):
    """An error that is reported to the client.

    The description may contain bytes that the client sent. If it is passed as bytes, ``data`` preserves them; in
    ``description`` undecodable bytes are surrogate escapes.
    """

    def __init__(self, code: str, description: str | bytes = "") -> None:
        if isinstance(description, bytes):
            description = description.decode("utf-8", "surrogateescape")
        super().__init__(code, description)
        self.code = code
        self.description = description

    @property
    def data(self) -> bytes:
        """The data of the error frame: code, space, description; only the code if there is no description."""
        text = f"{self.code} {self.description}" if self.description else self.code
        return text.encode("utf-8", "surrogateescape")

    def __str__(self) -> str:
        """``data`` as text for a log line; undecodable bytes become ``\\xNN``."""
        return self.data.decode("utf-8", "backslashreplace")


class ClientError(NsqError):
    """The command failed; the connection stays open."""


class FatalClientError(NsqError):
    """The error frame is sent, then the connection is closed."""


class SilentClose(Exception):
    """The connection is closed without an error frame: a line too long, EOF, a deadline between commands."""


# --- Untrusted text ---------------------------------------------------------------------------------------------------

_MAX_LOGGED: Final = 1000
_SHORT_ESCAPES: Final = {raw: "\\" + letter for raw, letter in zip('"\\\a\b\f\n\r\t\v', '"\\abfnrtv', strict=True)}


def one_line(text: str) -> str:
    """Text with everything that is not printable escaped, such as `\\n` and `\\x1b`. Fast for the usual case."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def shortened(text: str) -> str:
    """Text that a peer chose, for a log line: it must not fill the disk with long ones."""
    return text if len(text) <= _MAX_LOGGED else f"{text[:_MAX_LOGGED]}..."


def quote(raw: bytes) -> str:
    """Quote bytes as Go's ``%q`` does, as NSQ's error texts do with names.

    The result is one printable line: bytes that are not UTF-8 become ``\\xNN``, unprintable characters ``\\uNNNN``.
    """
    return '"' + "".join(map(_escape, raw.decode("utf-8", "surrogateescape"))) + '"'


def _escape(character: str) -> str:
    if character in _SHORT_ESCAPES:
        return _SHORT_ESCAPES[character]
    # Go and Python have the same printable characters: letters, marks, numbers, punctuation, symbols, the ASCII space.
    if character.isprintable():
        return character
    code = ord(character)
    if code < 0x20 or code == 0x7F:
        return f"\\x{code:02x}"
    if 0xDC80 <= code <= 0xDCFF:  # the surrogateescape handler maps the bytes 0x80 to 0xFF here
        return f"\\x{code - 0xDC00:02x}"
    if code < 0x10000:
        return f"\\u{code:04x}"
    return f"\\U{code:08x}"


# --- Secrets ----------------------------------------------------------------------------------------------------------

HIDDEN: Final = "***"
_USER: Final = re.compile(r"^([^/?#]*://)?[^/?#][^?#]*@")  # a password may have a slash
_PARAMETER: Final = re.compile(r"([?&;])([^=&;?]*)=([^&;]+)")
_MAX_PARAMETERS: Final = 200
_MAX_NAME: Final = 100
"""Characters. Of longer names, and of a query with more parameters, no value is shown: examining them takes long."""
_is_secret: Final = re.compile(  # `code` and `state`: OpenID Connect
    r"(?i)[\w.-]*(?:token|secret|passw(?:or)?d|passphrase|credential|key|signature)s?(?:\[.*\])?"
    r"|.*\[(?:token|secret|password|key)s?\]|code|state|sig|jwt|pw|pwd|auth|authorization|bearer"
).fullmatch


def hidden(secret: str) -> str:
    """What is shown of a secret."""
    return HIDDEN if secret else ""


def without_secrets(text: str) -> str:
    """An address or URL without user, password and query: `https://me:pw@host/auth?key=1` is `https://host/auth`."""
    return without_user(text.partition("?")[0])


def without_user(url: str) -> str:
    """An address or URL, as it is except for user and password."""
    return _USER.sub(r"\1", url)


def url_without_secrets(url: str) -> str:
    """A URL without user, password and the values of parameters that are named as secrets; or the target of a request,
    for a log line."""
    if "@" not in url and "=" not in url:
        return url
    shown = without_user(url)
    if shown.count("&") + shown.count(";") > _MAX_PARAMETERS:
        return f"{shown.partition('?')[0]}?{HIDDEN}"
    return _PARAMETER.sub(_shown_parameter, shown)


def _shown_parameter(parameter: re.Match[str]) -> str:
    name = parameter[2]
    if len(name) <= _MAX_NAME and not _is_secret(unquote_plus(name)):
        return parameter[0]
    return f"{parameter[1]}{name}={HIDDEN}"


def target_without_secrets(target: bytes) -> str:
    """`url_without_secrets` of a request."""
    return url_without_secrets(target.decode("ascii", "backslashreplace"))
