"""A task that reads a range of offsets from one nsqd (mode=log).

The range is fixed before the task begins, and nsqd gives the same bytes for the same offsets, so a task that is run
again yields the same rows. Nothing is written, and nothing is consumed.
"""

import json
import logging
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import numpy as np
import pyarrow as pa
import requests

from nsq_compat.bounded_http import FAILURES, Answer, Deadline, bearer, bounded_session, exchange, reason_of
from nsq_compat.protocol.errors import one_line, shortened
from nsq_compat.protocol.frames import FrameError, FrameReader
from nsq_compat.session.client_session import ReceivedFrames
from pyspark_nsq.connection import tls_context
from pyspark_nsq.decode import InvalidMessage, decode
from pyspark_nsq.log_plan import Range
from pyspark_nsq.nodes import url_of
from pyspark_nsq.options import ReadOptions
from pyspark_nsq.topic_logs import Mark

log = logging.getLogger(__name__)

_CHUNK_BYTES: Final = 4 << 20
_MAX_BODY: Final = 64 << 20
"""An answer has at least one message, of any size."""
PATIENCE: Final = 30.0
"""How long a task tries to reach an nsqd, which may be restarting, in seconds."""
_MAX_OFFSET_DIGITS: Final = 18
_ANOTHER: Final = "lost: it has another log, after another data path or a deleted topic, or its log lost its end"
_FIRST_PAUSE: Final = 0.1
_MAX_PAUSE: Final = 2.0


class LogUnreadable(Exception):
    """An nsqd cannot be reached, or does not give the messages; the text says what to do."""


class MessagesLost(LogUnreadable):
    """Messages of the range are no longer in the log."""


def read_range(work: Range, options: ReadOptions) -> Iterator[tuple[pa.RecordBatch, pa.Array]]:
    """Yield the messages of a range, as ``decode`` returns them, with their offsets.

    Raises ``LogUnreadable``, and ``MessagesLost`` with failOnDataLoss.
    """
    at, mark = work.begin, work.mark
    with bounded_session(tls=tls_context(options)) as session:
        while at < work.end:
            first, following, body = _read(session, work, at, options)
            if first < at or following > work.end:
                raise LogUnreadable(
                    f"nsqd {work.nsqd} answered with messages of {work.topic} from {first} to {following - 1}, and was "
                    f"asked for those from {at} to {work.end - 1}"
                )
            if first > at:
                _lost(work, at, first, "damaged, or were never written", options)
            if following <= at:
                raise LogUnreadable(f"nsqd {work.nsqd} answered without an end to a read of {work.topic} from {at}")
            if body or following > first:
                messages = _messages(work, body)
                if messages.num_rows != following - first:
                    raise LogUnreadable(
                        f"nsqd {work.nsqd} answered with {messages.num_rows} messages of {work.topic} for the offsets "
                        f"{first} to {following - 1}"
                    )
                looks_newer = mark is not None and messages["timestamp_ns"][0].as_py() > mark.timestamp_ns
                if looks_newer and _has_mark(session, work, options) is False:
                    _lost(work, at, work.end, _ANOTHER, options)
                    return
                yield messages, pa.array(np.arange(first, following, dtype=np.int64))
            at = following


def has_mark(topic: str, nsqd: str, mark: Mark, options: ReadOptions) -> bool | None:
    """Whether the log of an nsqd has this message; None if it was released or is damaged. Raises ``LogUnreadable``."""
    with bounded_session(tls=tls_context(options)) as session:
        return _has_mark(session, Range(topic, nsqd, mark.offset, mark.offset + 1, mark=mark), options)


def _has_mark(session: requests.Session, work: Range, options: ReadOptions) -> bool | None:
    mark = work.mark
    assert mark is not None, "the caller has checked"
    answer = _asked(session, replace(work, end=mark.offset + 1), mark.offset, options)
    if not answer.body or answer.status != 200:
        return False if answer.status == 400 else None
    return bool(_messages(work, answer.body)["timestamp_ns"][0].as_py() == mark.timestamp_ns)


def _messages(work: Range, body: bytes) -> pa.RecordBatch:
    """The messages of an answer, at least one. Raises ``LogUnreadable``."""
    try:
        block = FrameReader(_MAX_BODY).receive_block(body)
        if block.others or len(block.starts) < 2:
            raise FrameError("it has other frames" if block.others else "it has no messages")
        return decode([ReceivedFrames(block.data, block.starts)])
    except (FrameError, InvalidMessage) as error:
        raise _invalid(work, str(error)) from None


def _number(work: Range, text: str | None) -> int:
    """An offset in an answer. Raises ``LogUnreadable``."""
    if text is None or not text.isdecimal() or len(text) > _MAX_OFFSET_DIGITS:
        raise _invalid(work, f"{text!r} is not an offset")
    return int(text)


def _invalid(work: Range, reason: str) -> LogUnreadable:
    return LogUnreadable(f"nsqd {work.nsqd} gave an invalid answer to a read of {work.topic}: {reason}")


def _read(session: requests.Session, work: Range, at: int, options: ReadOptions) -> tuple[int, int, bytes]:
    """One answer: the offset of its first message, the one after its last, and the frames."""
    answer = _asked(session, work, at, options)
    if answer.status == 200:
        first, following = (_number(work, answer.headers.get(f"X-NSQ-{each}-Offset")) for each in ("First", "Next"))
        return first, following, answer.body
    is_released = answer.status == 410
    first = min(_number(work, _problem(answer).rpartition(" ")[2]), work.end) if is_released else work.end
    _lost(work, at, first, "released before they were read" if is_released else _ANOTHER, options)
    return first, first, b""


def _asked(session: requests.Session, work: Range, at: int, options: ReadOptions) -> Answer:
    """An answer to a read from `at`. Its status is 200, 410 if this was released, or 400 if the log ends before it."""
    query = {"topic": work.topic, "from": at, "to": work.end, "max_bytes": _CHUNK_BYTES}
    url = url_of(work.nsqd, "topic/read", query)
    give_up, pause = time.monotonic() + PATIENCE, _FIRST_PAUSE
    while True:
        try:
            answer = exchange(
                session,
                "GET",
                url,
                Deadline(max(options.connect_timeout, PATIENCE)),
                connect_timeout=options.connect_timeout,
                max_body=_MAX_BODY,
                headers=bearer(options.auth_secret),
            )
            problem = "" if answer.status == 200 else _problem(answer)
            if answer.status in (200, 410) or problem.startswith(("INVALID_ARG_FROM", "INVALID_ARG_TO")):
                return answer
        except FAILURES as error:
            answer, problem = None, reason_of(error)
        # 500 and 503: the log cannot be read now, or nsqd is stopping. Other refusals do not end by waiting.
        if time.monotonic() >= give_up or (answer is not None and answer.status < 500):
            raise LogUnreadable(f"nsqd {work.nsqd}, topic {work.topic}, offset {at}: {problem}")
        log.info("reading %s again from nsqd %s: %s", work.topic, work.nsqd, problem)
        time.sleep(pause)
        pause = min(2 * pause, _MAX_PAUSE)


def _problem(answer: Answer) -> str:
    try:
        return one_line(shortened(str(json.loads(answer.body)["message"])))
    except (ValueError, TypeError, KeyError, RecursionError):
        return f"status {answer.status}"


def _lost(work: Range, begin: int, end: int, why: str, options: ReadOptions) -> None:
    text = f"{end - begin} messages of {work.topic} on nsqd {work.nsqd}, from offset {begin}, were {why}"
    if options.fail_on_data_loss:
        raise MessagesLost(f"{text}. With failOnDataLoss=false the query continues without them")
    log.error("%s", text)
