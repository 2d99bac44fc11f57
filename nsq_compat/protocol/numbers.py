"""Decimal parameters of commands, as nsqd reads them."""

from typing import Final

BEYOND_64_BITS: Final = 1 << 64
"""Stands for every value that does not fit; too big for every limit (docs/differences.md: numbers)."""

_MAX_DIGITS: Final = 19


def number(raw: bytes) -> int | None:
    """A decimal parameter: digits only, an empty one is 0; None for anything else.

    What does not fit 64 bits becomes ``BEYOND_64_BITS``, where nsqd lets it wrap around.
    """
    if not raw:
        return 0
    if not raw.isdigit():
        return None
    digits = raw.lstrip(b"0")
    return int(digits or b"0") if len(digits) <= _MAX_DIGITS else BEYOND_64_BITS
