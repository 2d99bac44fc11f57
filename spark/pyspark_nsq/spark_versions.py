"""What differs between the supported versions of Spark.

Since 4.2, Spark tells a streaming source where a batch begins, how large it may be, and that a query has the trigger
availableNow. Spark 4.0 and 4.1 do not, so `source` remembers the beginning, and the option ``availableNow`` stands for
the trigger. Spark 4.0 pushes no filters, and has no Arrow writer of streams. mypy does not follow pyspark's modules.
"""

from contextlib import suppress
from threading import Thread
from typing import Any, Final

from pyspark.sql import datasource

try:
    import pyspark.sql.streaming.datasource as _admission
except ImportError:
    _admission = None

HAS_ADMISSION: Final = _admission is not None
"""Whether Spark limits batches and passes availableNow on: Spark 4.2 or newer."""

ReadMaxRows: Any = getattr(_admission, "ReadMaxRows", None)
SupportsTriggerAvailableNow: Any = getattr(_admission, "SupportsTriggerAvailableNow", object)


class _StreamArrowWriter(datasource.DataSourceStreamWriter, datasource.DataSourceArrowWriter):
    """In Spark 4.0: a task passes Arrow batches to any writer that is a DataSourceArrowWriter."""


DataSourceStreamArrowWriter: Any = getattr(datasource, "DataSourceStreamArrowWriter", _StreamArrowWriter)


def reading_available_now() -> dict[str, str]:
    """The options of a stream that is started with `start_available_now`."""
    return {} if HAS_ADMISSION else {"availableNow": "true"}


def start_available_now(writer: Any) -> Any:
    """Start a query that ends when it has read what waits now. Returns the query."""
    if HAS_ADMISSION:
        return writer.trigger(availableNow=True).start()
    query = writer.start()
    Thread(target=_stop_at_the_end, args=(query,), daemon=True).start()
    return query


def _stop_at_the_end(query: Any) -> None:
    with suppress(Exception):  # of the query: it is also raised by awaitTermination
        query.processAllAvailable()
    query.stop()
