"""The policies in the config file: tables `[[policies]]`, which Go's nsqd passes over."""

import re
from typing import Final

from nsq_compat.cli import config_file
from nsq_compat.cli.errors import OptionError
from nsq_compat.policy.policies import Policies, PolicyError

KEY: Final = "policies"
_TABLE: Final = re.compile(rf"""\s*\[\[\s*["']?{KEY}["']?\s*\]\]""")
_ANY_TABLE: Final = re.compile(r"\s*\[")


def load_policies(path: str) -> Policies:
    """What the file says; none without a file. Raises ``OptionError``, which names the line."""
    if not path:
        return Policies()
    try:
        return Policies(config_file.load(path).get(KEY, ()))
    except PolicyError as error:
        line = _line_of(path, error)
        where = f"line {line}: " if line else ""
        raise OptionError(f"failed to load config file {path} - {where}{error}") from None


def _line_of(path: str, error: PolicyError) -> int:
    """Where the policy is, or its setting if that can be told; 0 if neither can."""
    with open(path, encoding="utf-8-sig", errors="replace") as file:
        lines = file.read().splitlines()
    begins = [number for number, line in enumerate(lines, 1) if _TABLE.match(line)]
    if not 0 < error.number <= len(begins):
        return 0
    begin = begins[error.number - 1]
    setting = re.compile(rf"""\s*["']?{re.escape(error.key)}["']?\s*=""")
    for number, line in enumerate(lines[begin:], begin + 1):
        if _ANY_TABLE.match(line):
            break
        if error.key and setting.match(line):
            return number
    return begin
