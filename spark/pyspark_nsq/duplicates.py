"""De-duplication of a stream, exact for some time (`once`), or in memory of fixed size (`once_in_slots`)."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from pyspark.sql import DataFrame, GroupedData, Row
from pyspark.sql import functions as sql
from pyspark.sql.streaming import StatefulProcessor

from pyspark_nsq.options import OptionError

DIGEST_BYTES: Final = 16
SLOTS_OF_GROUP: Final = 4096
"""Slots that are stored together, and read and written together by a batch that needs one of them."""
ROCKSDB: Final = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
"""The only state store that has stateful operators in Python."""


def once(messages: DataFrame, keys: Sequence[str], within: str) -> DataFrame:
    """Drop the messages whose keys were received during the preceding time `within`.

    The watermark is on the time when Spark received a batch, which is part of the checkpoint. With a watermark on
    `timestamp`, Spark would drop a message that waited long at nsqd.
    """
    received = messages.withColumn("_received", sql.current_timestamp()).withWatermark("_received", within)
    return received.dropDuplicatesWithinWatermark(list(keys)).drop("_received")


def once_in_slots(messages: DataFrame, key: str, slots: int) -> DataFrame:
    """Drop the messages whose key is the last one in its slot: the opposite of a Bloom filter.

    A key, which is an SQL expression of bytes, is forgotten when another one takes its slot. A duplicate may pass then,
    but a message with a new key is never dropped. The session must keep its state in `ROCKSDB`.
    """
    slot = f"pmod(xxhash64({key}), {slots})"
    if not hasattr(GroupedData, "transformWithState"):
        raise OptionError("slots need Spark 4.1 or newer: Spark 4.0 has no stateful operators on rows in Python")
    placed = messages.selectExpr(
        "*",
        f"substring(unhex(sha2({key}, 256)), 1, {DIGEST_BYTES}) AS _digest",
        f"{slot} DIV {SLOTS_OF_GROUP} AS _group",
        f"CAST({slot} % {SLOTS_OF_GROUP} AS INT) AS _slot",
    )
    return placed.groupBy("_group").transformWithState(LastKeys(), messages.schema, "Append", "None")


class LastKeys(StatefulProcessor):
    """A group of slots, each with the digest of its last key."""

    def init(self, handle: Any) -> None:
        self._state = handle.getValueState("digests", "digests binary")

    def handleInputRows(self, key: Any, rows: Iterator[Row], _: Any) -> Iterator[Row]:  # noqa: N802 - Spark's name
        # Asked first, because Spark warns of a value that does not exist.
        digests = bytearray(self._state.get()[0] if self._state.exists() else SLOTS_OF_GROUP * DIGEST_BYTES)
        for row in rows:
            begin = row["_slot"] * DIGEST_BYTES
            slot = slice(begin, begin + DIGEST_BYTES)
            if digests[slot] != row["_digest"]:
                digests[slot] = row["_digest"]
                yield Row(**{name: row[name] for name in row.__fields__ if not name.startswith("_")})
        self._state.update((bytes(digests),))

    def close(self) -> None:
        """Nothing is open."""
