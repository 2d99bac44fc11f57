"""nsqd.dat: the existing topics and channels, and whether they are paused, in the format of Go's nsqd.

It contains no messages, and no ephemeral topics or channels.
"""

import logging
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final

from nsq_compat import NSQ_VERSION
from nsq_compat.log.data_path import reason
from nsq_compat.log.files import Files, read_file, replace_file
from nsq_compat.protocol.go_json import JsonError, dumps, loads_untyped
from nsq_compat.protocol.names import is_ephemeral, is_valid_name

log = logging.getLogger(__name__)

FILE_NAME: Final = "nsqd.dat"

_ROOT: Final[dict[str, Any]] = {"topics": [], "version": ""}
_TOPIC: Final[dict[str, Any]] = {"name": "", "paused": False, "channels": []}
_CHANNEL: Final[dict[str, Any]] = {"name": "", "paused": False}
_TYPE_NAMES: Final = {list: "an array", str: "a string", bool: "a boolean"}
_MAX_FAULTS_SHOWN: Final = 5
_MAX_NAME_SHOWN: Final = 80  # characters; valid names are shorter


class MetadataError(Exception):
    """nsqd.dat cannot be read, parsed or copied."""


@dataclass(frozen=True, slots=True)
class ChannelMetadata:
    """A channel of a topic in nsqd.dat."""

    name: str
    paused: bool = False


@dataclass(frozen=True, slots=True)
class TopicMetadata:
    """A topic in nsqd.dat."""

    name: str
    paused: bool = False
    channels: tuple[ChannelMetadata, ...] = ()


@dataclass(frozen=True, slots=True)
class Metadata:
    """The readable part of nsqd.dat, with each topic once, and a description of each fault in the file's `content`."""

    topics: tuple[TopicMetadata, ...] = ()
    faults: tuple[str, ...] = ()
    content: bytes = field(default=b"", compare=False)

    @property
    def damage(self) -> str:
        """The faults as a text for one log line; empty if the file is sound."""
        shown = "; ".join(self.faults[:_MAX_FAULTS_SHOWN])
        more = len(self.faults) - _MAX_FAULTS_SHOWN
        return f"{shown}; and {more} more" if more > 0 else shown


def read_metadata(files: Files, data_path: str) -> Metadata:
    """Read nsqd.dat in `data_path`; if there is none, the result is empty.

    Raises ``MetadataError`` if the system fails to read the file, which is not damage.
    """
    path = path_of(data_path)
    try:
        return decode_metadata(read_file(files, path))
    except FileNotFoundError:
        return Metadata()
    except OSError as error:
        raise MetadataError(f"failed to read metadata from {path} - {reason(error)}") from None


def load_metadata(files: Files, data_path: str) -> tuple[TopicMetadata, ...]:
    """The topics in nsqd.dat, none if there is no file. Raises ``MetadataError`` if it is unreadable or damaged."""
    metadata = read_metadata(files, data_path)
    if metadata.faults:
        raise MetadataError(f"failed to parse metadata in {path_of(data_path)} - {metadata.damage}")
    return metadata.topics


def recover_metadata(files: Files, data_path: str) -> tuple[TopicMetadata, ...]:
    """The topics that can be read in nsqd.dat. If the file is damaged, keeps a copy of it and logs one ERROR.

    nsqd.dat itself is not changed until it is replaced, so that nothing more is lost if the process ends before that.
    Raises ``MetadataError`` if the system fails to read the file or to write the copy.
    """
    metadata = read_metadata(files, data_path)
    if metadata.faults:
        path = path_of(data_path)
        try:
            kept = _keep_copy(files, data_path, metadata.content)
        except OSError as error:
            raise MetadataError(
                f"{path} is damaged ({metadata.damage}) and no copy of it can be kept - {reason(error)}"
            ) from None
        log.error(
            "metadata in %s is damaged (%s): kept as %s; topics and channels come from their logs, "
            "those without a log may be missing, and paused channels may no longer be paused",
            path, metadata.damage, kept,
        )  # fmt: skip
    return metadata.topics


def path_of(data_path: str) -> str:
    return os.path.join(data_path, FILE_NAME)


def save_metadata(files: Files, data_path: str, topics: Iterable[TopicMetadata]) -> None:
    """Replace nsqd.dat atomically and durably. Raises ``OSError``."""
    replace_file(files, path_of(data_path), encode_metadata(topics), sync=True)


def decode_metadata(data: bytes) -> Metadata:
    """Decode nsqd.dat. Never raises: invalid parts are left out and described in `faults`."""
    decoder = _Decoder()
    return Metadata(decoder.decode(data), tuple(decoder.faults), data)


def encode_metadata(topics: Iterable[TopicMetadata]) -> bytes:
    """The content of nsqd.dat, without ephemeral topics and channels."""
    # One topic per call: encoding ten thousand in one call would keep other threads from running.
    rows = ",".join([dumps(_row(topic)) for topic in topics if not is_ephemeral(topic.name)])
    return f'{{"topics":{f"[{rows}]" if rows else "null"},"version":{dumps(NSQ_VERSION)}}}'.encode()


def _row(topic: TopicMetadata) -> dict[str, Any]:
    channels = [
        {"name": channel.name, "paused": channel.paused} for channel in topic.channels if not is_ephemeral(channel.name)
    ]
    return {"name": topic.name, "paused": topic.paused, "channels": channels or None}  # nsqd: an empty list is null


def _keep_copy(files: Files, data_path: str, content: bytes) -> str:
    """Write a durable file with this content, unless an earlier start did so. Returns its path."""
    taken = files.listdir(data_path)
    for number in count(1):
        name = f"{FILE_NAME}.bad-{number}"
        path = os.path.join(data_path, name)
        if name not in taken:
            replace_file(files, path, content, sync=True)
            break
        if _has_content(files, path, content):
            files.fsync_folder(data_path)  # its name may not be durable
            break
    return path


def _has_content(files: Files, path: str, content: bytes) -> bool:
    try:
        return files.size(path) == len(content) and read_file(files, path) == content
    except OSError:
        return False


class _Decoder:
    """Decodes one nsqd.dat; `faults` describes the parts that were left out."""

    def __init__(self) -> None:
        self.faults: list[str] = []

    def decode(self, data: bytes) -> tuple[TopicMetadata, ...]:
        root = None
        if not data.strip():
            self.faults.append("unexpected end of JSON input")
        else:
            try:
                root = loads_untyped(data)
            except JsonError as error:
                self.faults.append(str(error))
        topics: dict[str, TopicMetadata] = {}
        for number, row in enumerate(self._fields(root, _ROOT, "the file")["topics"], 1):
            topic = self._topic(row, f"topic {number}")
            if topic is None:
                continue
            known = topics.setdefault(topic.name, topic)
            if known is not topic:
                self.faults.append(f"topic {topic.name} is named twice")
                if known != topic:
                    # The two entries differ, and a channel of the wrong one would receive the topic's messages.
                    topics[topic.name] = TopicMetadata(topic.name)
        return tuple(topics.values())

    def _topic(self, row: object, place: str) -> TopicMetadata | None:
        fields = self._fields(row, _TOPIC, place)
        if not self._is_valid(fields["name"], place):
            return None
        place = f"topic {fields['name']}"
        channels: dict[str, bool] = {}
        for number, each in enumerate(fields["channels"], 1):
            channel = self._fields(each, _CHANNEL, f"channel {number} of {place}")
            name = channel["name"]
            if not self._is_valid(name, f"channel {number} of {place}"):
                continue
            if name in channels:
                self.faults.append(f"channel {name} of {place} is named twice")
            # If in doubt the channel is paused, because a paused channel keeps its messages.
            channels[name] = channels.get(name, False) or channel["paused"]
        rows = tuple(ChannelMetadata(name, paused) for name, paused in channels.items())
        return TopicMetadata(fields["name"], fields["paused"], rows)

    def _fields(self, value: object, defaults: dict[str, Any], place: str) -> dict[str, Any]:
        """The fields of an object. Fields that are missing, null or of another type have their default."""
        if not isinstance(value, dict):
            if value is not None:
                self.faults.append(f"{place} is not an object")
            return defaults
        found = dict(defaults)
        for name, default in defaults.items():
            given = value.get(name)
            if type(given) is type(default):
                found[name] = given
            elif given is not None:
                self.faults.append(f"{place}: {name} is not {_TYPE_NAMES[type(default)]}")
        # An unknown key is ignored, unless a known key is missing: then it is probably that key with damage.
        missing = sorted(defaults.keys() - value.keys() - {"version"})
        unknown = sorted(value.keys() - defaults.keys())
        if missing and unknown:
            self.faults.append(f"{place} has {_shown(unknown[0])} instead of {missing[0]}")
        return found

    def _is_valid(self, name: str, place: str) -> bool:
        valid = is_valid_name(name)
        if not valid:
            self.faults.append(f"{place} has the invalid name {_shown(name)}")
        return valid


def _shown(text: str) -> str:
    """Text of a damaged file, escaped and shortened for a log line."""
    return ascii(text[:_MAX_NAME_SHOWN])
