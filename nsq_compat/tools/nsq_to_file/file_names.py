"""The names of nsq_to_file's files. Pure: names in, names out, and times as numbers.

`--filename-format` has places for the topic, the host, the process and the date. The revision, which distinguishes
files that would have the same name, is left open until a file is opened.
"""

import re
import time
from dataclasses import dataclass
from typing import Final, Self

REVISION: Final = "<REV>"
_TOKEN = re.compile("<(TOPIC|HOST|PID|DATETIME|REV)>")
_DATETIME_CODE = re.compile("%([YymdHIMSpBbAaZz%])")
_GZIP_SUFFIX: Final = ".gz"
_PATTERNS: Final = {
    "TOPIC": r"[.a-zA-Z0-9_-]+(?:#ephemeral)?",
    "PID": r"\d+",
    "DATETIME": r".*?",
    "REV": r"-\d{6,}",
}
"""Patterns of the values in names of files that another process may have made; the host must be this one."""


class BadFormat(ValueError):
    """A format that cannot name files; the text is for the operator."""


@dataclass(frozen=True, slots=True)
class Name:
    """A relative path whose revision is left open."""

    template: str

    def with_revision(self, number: int) -> str:
        return self.template.replace(REVISION, f"-{number:06d}")

    @property
    def is_gzip(self) -> bool:
        return self.template.endswith(_GZIP_SUFFIX)


@dataclass(frozen=True, slots=True)
class FileNames:
    """The names of all files of one program, made with `of`."""

    format: str
    datetime_format: str
    host: str
    pid: int

    @classmethod
    def of(
        cls,
        filename_format: str,
        datetime_format: str,
        *,
        hostname: str,
        host_identifier: str = "",
        pid: int,
        needs_revisions: bool,
        gzip: bool,
    ) -> Self:
        """Raises ``BadFormat``. `host_identifier` may contain ``<SHORT_HOST>`` and ``<HOSTNAME>``."""
        if needs_revisions and REVISION not in filename_format:
            raise BadFormat(f"missing {REVISION} in --filename-format when gzip, rotation, or work dir enabled")
        if not needs_revisions:
            filename_format = filename_format.replace(REVISION, "")
        if gzip and not filename_format.endswith(_GZIP_SUFFIX):
            filename_format += _GZIP_SUFFIX
        short = hostname.split(".")[0]
        host = (host_identifier or short).replace("<SHORT_HOST>", short).replace("<HOSTNAME>", hostname)
        return cls(filename_format, datetime_format, host, pid)

    def name(self, topic: str, now_ns: int) -> Name:
        """The name of a topic's file that is opened now. Raises ``BadFormat`` if it leads out of the directory."""
        values = {
            "TOPIC": topic,
            "HOST": self.host,
            "PID": str(self.pid),
            "DATETIME": datetime_text(self.datetime_format, now_ns),
            "REV": REVISION,
        }
        template = _TOKEN.sub(lambda token: values[token[1]], self.format).lstrip("/")
        # A topic may be named "..", and publishing must not give write access outside of the output directory.
        if ".." in template.split("/"):
            raise BadFormat(f"{template} leads out of the output directory")
        return Name(template)

    def recognize(self, path: str) -> "Recognized | None":
        """Parse the name of an unfinished file of this program, or of an earlier process with the same options."""
        found = self._pattern().fullmatch(path)
        if found is None:
            return None
        values = found.groupdict()
        template = _TOKEN.sub(lambda token: values[token[1]] if token[1] != "REV" else REVISION, self._plain_format())
        suffix = _GZIP_SUFFIX if path.endswith(_GZIP_SUFFIX) else ""
        return Recognized(values.get("TOPIC", ""), Name(template + suffix), int(values["REV"][1:]))

    def _plain_format(self) -> str:
        """Without the suffix, because --gzip may have changed since the file was made."""
        return self.format.lstrip("/").removesuffix(_GZIP_SUFFIX)

    def _pattern(self) -> re.Pattern[str]:
        any_of = {**_PATTERNS, "HOST": re.escape(self.host)}
        pattern, seen = "", set[str]()
        for index, piece in enumerate(_TOKEN.split(self._plain_format())):
            if index % 2 == 0:
                pattern += re.escape(piece)
            else:
                pattern += f"(?P={piece})" if piece in seen else f"(?P<{piece}>{any_of[piece]})"
                seen.add(piece)
        return re.compile(f"{pattern}(?:{re.escape(_GZIP_SUFFIX)})?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Recognized:
    """The parts of a name; the topic is "" where names do not contain it."""

    topic: str
    name: Name
    revision: int


def datetime_text(datetime_format: str, now_ns: int) -> str:
    """Local time in those of strftime's codes that nsq_to_file supports; others are kept as text."""
    moment = time.localtime(now_ns // 1_000_000_000)
    return _DATETIME_CODE.sub(lambda code: "%" if code[1] == "%" else time.strftime(code[0], moment), datetime_format)
