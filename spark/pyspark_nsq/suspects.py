"""Messages that are in the spool and may come again all the same: nobody knows whether their FIN was executed.

They are recorded before anything else happens to them, one file for each occasion, and are dropped and finished when
nsqd sends them again. After `suspect_ttl` they are forgotten; nsqd sends again after its msg_timeout.
"""

import json
import time
import uuid
from collections.abc import Iterable
from pathlib import Path

from pyspark_nsq.rows import Origin
from pyspark_nsq.spool_file import write_whole


class Suspects:
    """A folder of them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def add(self, origin: Origin, ids: Iterable[str], occasion: str = "") -> None:
        """Returns when they are on the disk. An `occasion` may be recorded by several, and counts once; it is recorded
        even if no id belongs to it."""
        said = {"topic": origin.topic, "channel": origin.channel, "nsqd": origin.nsqd, "ids": sorted(ids)}
        if said["ids"] or occasion:
            write_whole(self._file(origin, occasion), json.dumps(said).encode())

    def has(self, origin: Origin, occasion: str) -> bool:
        """Whether this was recorded."""
        return self._file(origin, occasion).exists()

    def of(self, origin: Origin) -> set[str]:
        """The ids that may come again from there."""
        found: set[str] = set()
        for file in self._files():
            try:
                said = json.loads(file.read_bytes())
            except FileNotFoundError:  # forgotten meanwhile
                continue
            if Origin(said["topic"], said["channel"], said["nsqd"]) == origin:
                found.update(said["ids"])
        return found

    def forget(self, ttl: float) -> None:
        """Drop what was recorded longer than `ttl` seconds ago."""
        oldest = time.time() - ttl
        for file in self._files():
            try:
                if file.stat().st_mtime < oldest:
                    file.unlink()
            except FileNotFoundError:
                continue

    def _file(self, origin: Origin, occasion: str) -> Path:
        text = f"{origin.topic} {origin.channel} {origin.nsqd} {occasion}"
        number = uuid.uuid5(uuid.NAMESPACE_URL, text) if occasion else uuid.uuid4()
        return self._folder / f"{number.hex}.json"

    def _files(self) -> list[Path]:
        return (
            sorted(each for each in self._folder.iterdir() if each.suffix == ".json") if self._folder.is_dir() else []
        )
