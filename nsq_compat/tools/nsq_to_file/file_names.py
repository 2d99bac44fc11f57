"""What nsq_to_file calls its files. Pure: names in, names out, and moments as numbers.

`--filename-format` has places for the topic, the host, the process and the date; what is left open until a file is
opened is its revision, which tells files apart that would have the same name.
"""

import re
import time
from dataclasses import dataclass
from typing import Final, Self

REVISION: Final = "<REV>"
_TOKEN = re.compile("<(TOPIC|HOST|PID|DATETIME|REV)>")
_DATETIME_CODE = re.compile("%([YymdHIMSpBbAaZz%])")
_GZIP_SUFFIX: Final = ".gz"
_ANY: Final = {
    "TOPIC": r"[.a-zA-Z0-9_-]+(?:#ephemeral)?",
    "PID": r"\d+",
    "DATETIME": r".*?",
    "REV": r"-\d{6,}",
}
"""What stands for a token in a name that somebody else may have made; for the host it is only our own."""


class BadFormat(ValueError):
    """A format that cannot name files; the text is for the operator."""


@dataclass(frozen=True, slots=True)
class Name:
    """A path below some folder, its revision left open."""

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
        """Raises ``BadFormat``. `host_identifier` may hold ``<SHORT_HOST>`` and ``<HOSTNAME>``."""
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
        """What a file of a topic that is opened now is called. Raises ``BadFormat`` for one that leads elsewhere."""
        values = {
            "TOPIC": topic,
            "HOST": self.host,
            "PID": str(self.pid),
            "DATETIME": datetime_text(self.datetime_format, now_ns),
            "REV": REVISION,
        }
        template = _TOKEN.sub(lambda token: values[token[1]], self.format).lstrip("/")
        # There may be a topic called "..", and whoever may publish may not write beside the output directory.
        if ".." in template.split("/"):
            raise BadFormat(f"{template} leads out of the output directory")
        return Name(template)

    def recognize(self, path: str) -> "Recognized | None":
        """A file that this program, or one like it before, has made and would move when it is finished."""
        found = self._pattern().fullmatch(path)
        if found is None:
            return None
        values = found.groupdict()
        template = _TOKEN.sub(lambda token: values[token[1]] if token[1] != "REV" else REVISION, self._plain_format())
        suffix = _GZIP_SUFFIX if path.endswith(_GZIP_SUFFIX) else ""
        return Recognized(values.get("TOPIC", ""), Name(template + suffix), int(values["REV"][1:]))

    def _plain_format(self) -> str:
        """It may have been told to compress before and not now, or the other way round."""
        return self.format.lstrip("/").removesuffix(_GZIP_SUFFIX)

    def _pattern(self) -> re.Pattern[str]:
        any_of = {**_ANY, "HOST": re.escape(self.host)}
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
    """What a name says; the topic is "" where names do not say it."""

    topic: str
    name: Name
    revision: int


def datetime_text(datetime_format: str, now_ns: int) -> str:
    """Local time in strftime's codes, as far as nsq_to_file knows them; others stay as they are written."""
    moment = time.localtime(now_ns // 1_000_000_000)
    return _DATETIME_CODE.sub(lambda code: "%" if code[1] == "%" else time.strftime(code[0], moment), datetime_format)
