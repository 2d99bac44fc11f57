"""Offsets and batches of a query that reads logs (mode=log): the driver's part of Spark's reader, without Spark.

An offset of the query describes the batch that ends with it:

    {"version": 1, "offsets": {topic: {nsqd: where the batch ends}},
     "plan": [[topic, nsqd, its TCP address, where the batch begins, number of tasks], ...],
     "marks": {topic: {nsqd: [offset, timestamp] of the last message that its log had}}}

A batch can be repeated from its end alone, in the same tasks: Spark gives a new initial offset to a query that has not
committed a batch. The marks tell when an nsqd has another log at the same address, with messages of its own at the same
offsets, or the same log at another address.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, TypeVar

from pyspark_nsq.filters import NO_BOUNDS, Bounds
from pyspark_nsq.log_plan import Range, limited, parts, split
from pyspark_nsq.log_reader import PATIENCE, LogUnreadable, MessagesLost, has_mark
from pyspark_nsq.nodes import Interval, NoNodes
from pyspark_nsq.option_parsers import EARLIEST, EARLIEST_OFFSET, LATEST, LATEST_OFFSET, Positions
from pyspark_nsq.options import OptionError, ReadOptions
from pyspark_nsq.plan import HoldBack
from pyspark_nsq.topic_logs import Mark, Report, TopicLog, TopicLogs, log

Offset = dict[str, Any]
Logs = dict[tuple[str, str], TopicLog]
Value = TypeVar("Value")

VERSION: Final = 1
_SIGHTINGS: Final = 1000


class LogProgress:
    """`clock` is monotonic."""

    def __init__(self, options: ReadOptions, clock: Callable[[], float] = time.monotonic) -> None:
        self._options = options
        self._clock = clock
        self._logs = TopicLogs(options, clock)
        self._initial: Offset | None = None
        # Spark asks 100 times a second.
        self._polls = Interval(options.poll_interval, clock)
        self._holds = HoldBack(options, clock)
        self._stops = False
        self._last: Positions | None = None
        self._heard_now: Logs = {}
        self._known: Logs = {}
        self._silent: dict[str, str] = {}
        self._reached: Positions = {}
        self._moved: dict[tuple[str, str], str] = {}
        """The addresses at which logs were before, by topic and present address."""
        self._sightings: dict[tuple[str, str], deque[tuple[float, int]]] = {}

    def initial(self) -> Offset:
        """The offset of a query without a checkpoint; the same for every call.

        Raises ``NoNodes`` if not every nsqd answers, and ``OptionError`` if the options do not fit what they have.
        """
        if self._initial is None:
            options = self._options
            if options.starting_timestamp is None and (options.starting_offsets or LATEST) == EARLIEST:
                report = self._heard(self._logs.ask(patience=options.connect_timeout))
            else:
                report = self._logs.require(options.starting_timestamp)
            self._note(report)
            begin = starting(options, report.logs, LATEST)
            # The first batch, which may be empty, puts this into the checkpoint: see `next`.
            marks = _by_topic(_marks(report.logs))
            self._initial = {"version": VERSION, "initial": True, "offsets": begin, "plan": [], "marks": marks}
        return self._initial

    def stop_at_current_end(self) -> None:
        """Plan no more messages than the logs have now, so that the query ends."""
        self._stops = True

    def next(self, start: Offset, limit: int | None) -> Offset:
        """The end of the batch after `start`, or `start` if there is nothing to read.

        Raises ``MessagesLost`` with failOnDataLoss if an nsqd has fewer messages than were read, or another log, and
        ``LogUnreadable`` if an nsqd goes away with messages that a query with availableNow is to read.
        """
        positions = _positions(start)
        is_first = "initial" in start
        if not is_first and not self._stops and not self._polls.is_due():
            return start
        give_up = self._clock() + PATIENCE
        while True:
            end = self._planned(positions, start.get("marks", {}), limit)
            if end["plan"] or is_first:
                return end
            if not self._stops or not (left := self._left(positions)):
                return start
            # It may be restarting. A query that ended here would look complete.
            if self._clock() >= give_up:
                raise LogUnreadable(f"{left}, and cannot be reached")
            time.sleep(self._options.poll_interval or 0.1)

    def _planned(self, positions: Positions, marks: dict[str, Any], limit: int | None) -> Offset:
        """The end of a batch that begins at these positions."""
        self._note(self._logs.ask(patience=self._options.connect_timeout if self._stops else None))
        if self._stops and self._last is None:
            self._last = _by_topic({key: each.next for key, each in self._heard_now.items()})
        begin: Positions = {}
        end: Positions = {}
        for (topic, nsqd), each in sorted(self._heard_now.items()):
            if former := self._former_address(each, positions.get(topic, {}), marks.get(topic, {})):
                positions, marks = _renamed(positions, topic, former, nsqd), _renamed(marks, topic, former, nsqd)
                self._last = self._last and _renamed(self._last, topic, former, nsqd)
            at = positions.get(topic, {}).get(nsqd)
            if at is not None and (each.next < at or self._is_another(each, marks.get(topic, {}).get(nsqd))):
                self._complain(each, at)
                at = 0
            at = each.first if at is None else at
            last = each.next if self._last is None else min(each.next, self._last.get(topic, {}).get(nsqd, at))
            if at < last:
                begin.setdefault(topic, {})[nsqd] = at
                end.setdefault(topic, {})[nsqd] = last
        end = limited(begin, end, limit)
        counts = {
            (topic, nsqd): count
            for topic, nsqds in end.items()
            for nsqd, at in nsqds.items()
            if (count := at - begin[topic][nsqd])
        }
        total = sum(counts.values())
        if not self._stops and self._holds.holds_back(total):
            counts = {}
        plan = []
        for (topic, nsqd), count in counts.items():
            tasks = parts(count, total, self._heard_now[topic, nsqd], self._options)
            plan.append([topic, nsqd, self._logs.tcp_of(nsqd), begin[topic][nsqd], tasks])
        self._reached = _merged(positions, _by_topic({(topic, nsqd): end[topic][nsqd] for topic, nsqd in counts}))
        marks = _merged(marks, _by_topic(_marks(self._heard_now)))
        return {"version": VERSION, "offsets": self._reached, "plan": plan, "marks": marks}

    def _is_another(self, each: TopicLog, given: list[int] | None) -> bool:
        """Whether nsqd has another log than the one with this mark. It is asked only if all messages look newer."""
        if given is None or each.first_timestamp_ns is None:
            return False
        mark = Mark(*given)
        looks_newer = each.first <= mark.offset and each.first_timestamp_ns > mark.timestamp_ns
        return looks_newer and has_mark(each.topic, each.nsqd, mark, self._options) is False

    def _former_address(self, each: TopicLog, positions: dict[str, int], marks: dict[str, list[int]]) -> str | None:
        """The address at which an nsqd was that has come to a new one, told by its log."""
        key = (each.topic, each.nsqd)
        if each.nsqd in positions:
            return None
        for former in positions.keys() & marks.keys():
            mark = Mark(*marks[former])
            if (each.topic, former) in self._heard_now or not each.first <= mark.offset < each.next:
                continue
            if self._moved.get(key) != former:  # as long as nothing is published, it stays in the checkpoint
                if not has_mark(*key, mark, self._options):
                    continue
                log.warning("nsqd %s has come to %s: %s is read on from where it was", former, each.nsqd, each.topic)
                self._moved[key] = former
            self._known.pop((each.topic, former), None)
            return former
        return None

    def _left(self, positions: Positions) -> str:
        """The first log that has not been read to where the query ends; empty if all have."""
        for topic, nsqds in (self._last or {}).items():
            for nsqd, last in nsqds.items():
                if (topic, nsqd) not in self._heard_now and (at := positions.get(topic, {}).get(nsqd, 0)) < last:
                    return f"nsqd {nsqd} has {last - at} more messages of {topic}"
        return ""

    def ranges(self, end: Offset) -> list[Range]:
        """The tasks of the batch that ends with this offset."""
        offsets, marks = _positions(end), end.get("marks", {})
        whole = (
            (Range(topic, nsqd, begin, offsets[topic][nsqd], tcp, Mark(*mark) if mark else None), tasks)
            for topic, nsqd, tcp, begin, tasks in end["plan"]
            for mark in (marks.get(topic, {}).get(nsqd),)
        )
        return [each for work, tasks in whole for each in split(work, tasks)]

    def committed(self, offset: Offset) -> None:
        """Nothing is kept for a batch, so nothing is deleted."""

    def report(self) -> dict[str, Any]:
        """What Spark shows as `latestOffset` in its progress: the ends of the logs, and how far behind the query is."""
        now = self._clock()
        behind = {key: max(0, each.next - self._position(each)) for key, each in self._known.items()}
        nsqds: dict[str, dict[str, Any]] = {}
        for (topic, nsqd), count in behind.items():
            each = self._known[topic, nsqd]
            entry = nsqds.setdefault(nsqd, {"messages": 0, "bytes": 0, "seconds": 0.0})
            entry["messages"] += count
            entry["bytes"] += _size(each, count)
            entry["seconds"] = max(entry["seconds"], round(self._lag((topic, nsqd), now), 3))
        for nsqd, text in self._silent.items():
            nsqds.setdefault(nsqd, {})["unreachable"] = text
        for nsqd, entry in nsqds.items():
            heard = self._logs.heard.get(nsqd)
            entry["heardSecondsAgo"] = None if heard is None else round(now - heard, 3)
        return {
            "version": VERSION,
            "offsets": _by_topic({key: each.next for key, each in self._known.items()}),
            "backlog": sum(behind.values()),
            "minOffsetsBehindLatest": str(min(behind.values(), default=0)),
            "maxOffsetsBehindLatest": str(max(behind.values(), default=0)),
            "avgOffsetsBehindLatest": str(sum(behind.values()) / len(behind) if behind else 0.0),
            "estimatedTotalBytesBehindLatest": str(sum(_size(self._known[key], each) for key, each in behind.items())),
            "nsqds": nsqds,
        }

    def _position(self, each: TopicLog) -> int:
        return self._reached.get(each.topic, {}).get(each.nsqd, each.first)

    def _heard(self, report: Report) -> Report:
        if not report.logs and report.silent:
            raise NoNodes("no nsqd can be reached: " + "; ".join(report.silent.values()))
        return report

    def _note(self, report: Report) -> None:
        self._heard_now = report.logs
        self._known |= report.logs
        self._silent = report.silent
        now = self._clock()
        for key, each in report.logs.items():
            seen = self._sightings.setdefault(key, deque(maxlen=_SIGHTINGS))
            if not seen or seen[-1][1] != each.next:
                seen.append((now, each.next))

    def _lag(self, key: tuple[str, str], now: float) -> float:
        """For how many seconds the log has had more messages than the query has planned, as far as was seen."""
        position, seen = self._position(self._known[key]), self._sightings[key]
        while seen and seen[0][1] <= position:
            seen.popleft()
        return now - seen[0][0] if seen else 0.0

    def _complain(self, each: TopicLog, at: int) -> None:
        text = (
            f"nsqd {each.nsqd} has only {each.next} messages of {each.topic}, and {at} were read: it lost messages, or "
            "has another data path"
            if each.next < at
            else f"nsqd {each.nsqd} has another log of {each.topic} than the one of which {at} messages were read: it "
            "has another data path, or the topic was deleted"
        )
        if self._options.fail_on_data_loss:
            raise MessagesLost(f"{text}. With failOnDataLoss=false its messages are read from the first")
        log.error("%s; they are read from the first", text)


def batch_ranges(options: ReadOptions, bounds: Bounds = NO_BOUNDS) -> list[Range]:
    """The tasks of a batch read of the messages within bounds.

    Raises ``NoNodes`` if not every nsqd answers, and ``OptionError``.
    """
    logs = TopicLogs(options)
    begins = logs.require(options.starting_timestamp).logs
    begin = starting(options, begins, EARLIEST)
    ends = begins if options.ending_timestamp is None else logs.require(options.ending_timestamp).logs
    end = ending(options, ends)
    timed = bounds.since_ms is not None or bounds.until_ms is not None
    within = logs.require(bounds.since_ms, bounds.until_ms).logs if timed else {}
    everything = (
        _within(Range(topic, nsqd, at, end[topic][nsqd], logs.tcp_of(nsqd)), within.get((topic, nsqd)))
        for topic, nsqds in begin.items()
        for nsqd, at in nsqds.items()
    )
    whole = [each for each in map(bounds.of, everything) if each.begin < each.end]
    counts = [each.end - each.begin for each in whole]
    return [
        task
        for each, count in zip(whole, counts, strict=True)
        for task in split(each, parts(count, sum(counts), begins[each.topic, each.nsqd], options))
    ]


def _within(work: Range, log: TopicLog | None) -> Range:
    """The part of a range with the messages of a time; `log` was asked for it, None for no limit."""
    if log is None:
        return work
    return replace(work, begin=max(work.begin, log.offset), end=work.end if log.end is None else min(work.end, log.end))


def starting(options: ReadOptions, logs: Logs, default: str) -> Positions:
    """The positions that the options name. `logs` were asked for the starting timestamp. Raises ``OptionError``."""
    if options.starting_timestamp is not None:
        late = [each for each in logs.values() if each.offset == each.next]
        if late and options.by_timestamp_strategy == "error":
            names = ", ".join(f"{each.topic} on {each.nsqd}" for each in late[:5])
            raise OptionError(
                f"startingTimestamp: there is no later message of {names}; to begin there at the latest, set "
                "startingOffsetsByTimestampStrategy=latest"
            )
        return _by_topic({key: each.offset for key, each in logs.items()})
    return _chosen("startingOffsets", options.starting_offsets or default, logs)


def ending(options: ReadOptions, logs: Logs) -> Positions:
    """As `starting`, for the end of a batch."""
    if options.ending_timestamp is not None:
        return _by_topic({key: each.offset for key, each in logs.items()})
    return _chosen("endingOffsets", options.ending_offsets or LATEST, logs)


def is_offset_of_log(offset: Offset) -> bool:
    """Whether an offset in a checkpoint is one of mode=log, not of mode=spool."""
    return "version" in offset


def _positions(offset: Offset) -> Positions:
    if offset.get("version") != VERSION:
        raise OptionError(f"the checkpoint has offsets of version {offset.get('version')}; this is version {VERSION}")
    positions: Positions = offset["offsets"]
    return positions


def _chosen(name: str, given: str | Positions, logs: Logs) -> Positions:
    if isinstance(given, str):
        return _by_topic({key: each.first if given == EARLIEST else each.next for key, each in logs.items()})
    named = {(topic, nsqd): at for topic, nsqds in given.items() for nsqd, at in nsqds.items()}
    if named.keys() != logs.keys():
        wrong = sorted(f"{topic} on {nsqd}" for topic, nsqd in named.keys() ^ logs.keys())
        raise OptionError(f"{name} must name every nsqd of every topic, and no others: {', '.join(wrong[:5])}")
    special = {EARLIEST_OFFSET: "first", LATEST_OFFSET: "next"}
    return _by_topic({key: getattr(logs[key], special[at]) if at in special else at for key, at in named.items()})


def _marks(logs: Logs) -> dict[tuple[str, str], list[int]]:
    return {key: list(mark) for key, each in logs.items() if (mark := each.mark)}


def _by_topic(values: dict[tuple[str, str], Value]) -> dict[str, dict[str, Value]]:
    by_topic: dict[str, dict[str, Value]] = {}
    for topic, nsqd in sorted(values):
        by_topic.setdefault(topic, {})[nsqd] = values[topic, nsqd]
    return by_topic


def _renamed(by_topic: dict[str, dict[str, Value]], topic: str, former: str, nsqd: str) -> dict[str, dict[str, Value]]:
    """With the value of one address at another."""
    values = by_topic.get(topic, {})
    return {**by_topic, topic: {nsqd if name == former else name: value for name, value in values.items()}}


def _merged(old: dict[str, dict[str, Value]], new: dict[str, dict[str, Value]]) -> dict[str, dict[str, Value]]:
    return {topic: {**old.get(topic, {}), **new.get(topic, {})} for topic in sorted({*old, *new})}


def _size(each: TopicLog, count: int) -> int:
    messages = each.next - each.first
    return each.bytes * count // messages if messages else 0
