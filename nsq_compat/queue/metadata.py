"""nsqd.dat: which topics and channels exist and which of them are paused, in the very form Go's nsqd reads and writes.

It holds no message. Ephemeral topics and channels are never in it.
"""

import logging
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from nsq_compat import NSQ_VERSION
from nsq_compat.protocol.go_json import BOOL, STRING, Fields, JsonError, dumps, list_of, loads_object, object_of
from nsq_compat.protocol.names import is_ephemeral, is_valid_name
from nsq_compat.queue.files import Files, read_file, replace_file

log = logging.getLogger(__name__)

FILE_NAME: Final = "nsqd.dat"

_CHANNEL: Final[Fields] = {"name": STRING, "paused": BOOL}
_TOPIC: Final[Fields] = {"name": STRING, "paused": BOOL, "channels": list_of(object_of(_CHANNEL))}
_METADATA: Final[Fields] = {"topics": list_of(object_of(_TOPIC)), "version": STRING}


class MetadataError(Exception):
    """nsqd.dat cannot be read or understood; the text is for the operator. Starting without it would forget topics."""


@dataclass(frozen=True, slots=True)
class ChannelMetadata:
    """One channel of a topic."""

    name: str
    paused: bool = False


@dataclass(frozen=True, slots=True)
class TopicMetadata:
    """One topic."""

    name: str
    paused: bool = False
    channels: tuple[ChannelMetadata, ...] = ()


def load_metadata(files: Files, data_path: str) -> tuple[TopicMetadata, ...] | None:
    """What nsqd.dat in `data_path` says; None when there is none. Raises ``MetadataError``."""
    path = os.path.join(data_path, FILE_NAME)
    try:
        data = read_file(files, path)
    except FileNotFoundError:
        return None
    except OSError as error:
        reason = os.strerror(error.errno or 0).lower()
        raise MetadataError(f"failed to read metadata from {path} - {reason}") from None
    try:
        return decode_metadata(data)
    except JsonError as error:
        raise MetadataError(f"failed to parse metadata in {path} - {error}") from None


def save_metadata(files: Files, data_path: str, topics: Iterable[TopicMetadata]) -> None:
    """Replace nsqd.dat, atomically and for good. Raises ``OSError``."""
    replace_file(files, os.path.join(data_path, FILE_NAME), encode_metadata(topics), sync=True)


def decode_metadata(data: bytes) -> tuple[TopicMetadata, ...]:
    """The topics in the content of nsqd.dat; a warning is logged for each name that is not legal, and it is left out.

    Raises ``JsonError``.
    """
    if not data.strip():
        raise JsonError("unexpected end of JSON input")
    decoded = loads_object(data, _METADATA)
    return tuple(_topic(row) for row in decoded["topics"] if _is_legal("topic", row["name"]))


def encode_metadata(topics: Iterable[TopicMetadata]) -> bytes:
    """The content of nsqd.dat. What is ephemeral is left out."""
    rows = [
        {
            "name": topic.name,
            "paused": topic.paused,
            # nsqd: an empty list is null.
            "channels": [
                {"name": channel.name, "paused": channel.paused}
                for channel in topic.channels
                if not is_ephemeral(channel.name)
            ]
            or None,
        }
        for topic in topics
        if not is_ephemeral(topic.name)
    ]
    return dumps({"topics": rows or None, "version": NSQ_VERSION}).encode("utf-8")


def _topic(row: dict[str, Any]) -> TopicMetadata:
    channels = [ChannelMetadata(**each) for each in row["channels"] if _is_legal("channel", each["name"])]
    return TopicMetadata(row["name"], row["paused"], tuple(channels))


def _is_legal(noun: str, name: str) -> bool:
    legal = is_valid_name(name)
    if not legal:
        log.warning("skipping creation of invalid %s %s", noun, name)
    return legal
