"""Suspects: spooled messages that nsqd may deliver again, because their FIN may not have been executed.

Each occasion is recorded in a file of its own, before anything else happens to the messages. A task drops and finishes
them if nsqd delivers them again, which it does after its msg_timeout. Records are deleted after `suspect_ttl`.
"""

import json
import time
import uuid
from collections.abc import Iterable
from pathlib import Path

from pyspark_nsq.rows import Origin
from pyspark_nsq.spool_file import write_atomically


class Suspects:
    """The folder of records."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def add(self, origin: Origin, ids: Iterable[str], occasion: str = "") -> None:
        """Record ids durably. A named `occasion` is recorded once, even by several tasks, and even without ids."""
        record = {"topic": origin.topic, "channel": origin.channel, "nsqd": origin.nsqd, "ids": sorted(ids)}
        if record["ids"] or occasion:
            write_atomically(self._file(origin, occasion), json.dumps(record).encode())

    def has(self, origin: Origin, occasion: str) -> bool:
        return self._file(origin, occasion).exists()

    def of(self, origin: Origin) -> set[str]:
        """The ids that `origin` may deliver again."""
        found: set[str] = set()
        for file in self._files():
            try:
                record = json.loads(file.read_bytes())
            except FileNotFoundError:  # expired meanwhile
                continue
            if Origin(record["topic"], record["channel"], record["nsqd"]) == origin:
                found.update(record["ids"])
        return found

    def forget(self, ttl: float) -> None:
        """Delete records older than `ttl` seconds."""
        oldest = time.time() - ttl
        for file in self._files():
            try:
                if file.stat().st_mtime < oldest:
                    file.unlink()
            except FileNotFoundError:
                continue

    def _file(self, origin: Origin, occasion: str) -> Path:
        text = f"{origin.topic} {origin.channel} {origin.nsqd} {occasion}"
        name = uuid.uuid5(uuid.NAMESPACE_URL, text) if occasion else uuid.uuid4()
        return self._folder / f"{name.hex}.json"

    def _files(self) -> list[Path]:
        return (
            sorted(each for each in self._folder.iterdir() if each.suffix == ".json") if self._folder.is_dir() else []
        )
