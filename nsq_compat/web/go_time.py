"""Moments as Go prints them, which is how the text form of /stats shows them."""

from datetime import UTC, datetime


def format_moment(unix_seconds: float) -> str:
    """RFC 3339 in whole seconds and the local zone; UTC is ``Z``."""
    moment = datetime.fromtimestamp(int(unix_seconds), UTC).astimezone()
    text = moment.isoformat(timespec="seconds")
    return text[:-6] + "Z" if text.endswith("+00:00") else text
