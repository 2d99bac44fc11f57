"""Messages of a channel by their ids: confirmation and execution of what an operator does with them; redrives, rewinds.

A redrive moves the messages of a channel, mostly of a dead-letter topic, to another topic, on each node. nsqd does it
batch by batch (POST /channel/redrive), so nothing is lost if nsqadmin or nsqd ends meanwhile. After a crash of nsqd the
last batch may be in both topics. A redrive runs in a thread; it ends when as many messages were moved as waited at its
beginning, so that messages that fail again do not go round for ever.
"""

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from flask import Blueprint, Response, current_app, render_template, request, url_for

from nsq_compat.cluster.cluster import Errors
from nsq_compat.cluster.http_client import DaemonError, HttpClient, named
from nsq_compat.cluster.peek import DONE, redrive
from nsq_compat.cluster.reading import UpstreamError
from nsq_compat.cluster.stats import ChannelStats, Retained
from nsq_compat.cluster.topic_log import Moved, query_retained
from nsq_compat.protocol.names import is_valid_name
from nsq_compat.web.admin import actions
from nsq_compat.web.admin.access import check_form, require, service, visitor
from nsq_compat.web.admin.actions import perform
from nsq_compat.web.admin.formatting import count_of
from nsq_compat.web.admin.queries import STATS_SHARE, Queries, current_snapshot
from nsq_compat.web.admin.tables import charts_of
from nsq_compat.web.admin.users import Role
from nsq_compat.web.application import ApiError

log = logging.getLogger(__name__)

messages = Blueprint("messages", __name__)

MAX_DELAY_SECONDS: Final = 3600 * 24 * 365
_BATCH: Final = 256
"""Messages that nsqd moves at once."""
_RETRIES: Final = 20
_RETRY_SECONDS: Final = 0.25
_MAX_REDRIVES: Final = 100
"""Finished redrives that are remembered."""


# --- Finish, requeue, dead-letter -------------------------------------------------------------------------------------


@messages.post("/topics/<topic>/<channel>/messages")
def act(topic: str, channel: str) -> Response | str:
    """The first request shows a confirmation, the second one, `confirmed`, acts."""
    check_form()
    require(Role.OPERATOR)
    action, values = request.form.get("action", ""), request.form.getlist("message")
    if action not in DONE:
        raise ApiError(400, "INVALID_ACTION")
    chosen: dict[str, list[str]] = {}
    for value in values:
        node, _, each = value.rpartition(" ")
        chosen.setdefault(node, []).append(each)
    back = url_for("topics.messages", topic=topic, channel=channel)
    delay = request.form.get("delay", "").strip() or "0"
    valid = delay.isascii() and delay.isdigit() and len(delay) < 9 and int(delay) <= MAX_DELAY_SECONDS
    if not values or not request.form.get("confirmed") or not valid:
        return render_template(
            "messages/confirm.html",
            action=action,
            topic=topic,
            channel=channel,
            chosen=chosen,
            values=values,
            delay=delay,
            invalid_delay=not valid,
            back=back,
        )
    delay_ms = int(delay) * 1000 if action == "requeue" else 0
    return perform(lambda: actions.act_on_messages(action, topic, channel, chosen, delay_ms), "", back)


# --- Redrives ---------------------------------------------------------------------------------------------------------


@dataclass
class Redrive:
    """`left` has, by node, the messages that are still to be moved; the thread changes it and `moved`."""

    topic: str
    channel: str
    to: str
    total: int
    left: dict[str, int]
    user: str
    began: float
    """Unix seconds."""
    moved: int = 0
    ended: float = 0.0
    cancelled: bool = False
    errors: list[str] = field(default_factory=list)

    def run(self, client: HttpClient) -> None:
        try:
            for node in list(self.left):
                self._move(client, node)
        except Exception:  # the top of a thread
            log.exception("REDRIVE: failed")
            self.errors.append("internal error, see the log")
        self.ended = time.time()
        outcome = f"failed at {len(self.errors)}: {'; '.join(self.errors)}" if self.errors else "done"
        end = "cancelled" if self.cancelled else outcome
        log.info(
            "AUDIT: redrive of %s from %s/%s to %s: %d of %d messages moved, %s",
            self.user, self.topic, self.channel, self.to, self.moved, self.total, end,
        )  # fmt: skip

    def _move(self, client: HttpClient, node: str) -> None:
        tries = 0
        while self.left[node] > 0 and not self.cancelled:
            try:
                moved, depth = redrive(client, node, self.topic, self.channel, self.to, min(_BATCH, self.left[node]))
            except UpstreamError as failure:
                self.errors.append(named(DaemonError(node, str(failure))))
                return
            self.moved += moved
            self.left[node] -= moved
            if not moved:
                # None waits now, or the node reads them from its log.
                tries += 1
                if not depth or tries > _RETRIES:
                    self.left[node] = 0
                    return
                time.sleep(_RETRY_SECONDS)


class Redrives:
    """The redrives of this process, by topic and channel."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, str], Redrive] = {}

    def last(self, topic: str, channel: str) -> Redrive | None:
        return self._last.get((topic, channel))

    def start(self, started: Redrive) -> None:
        """Raises `ApiError` 409 if one of this channel is running."""
        key = (started.topic, started.channel)
        before = self._last.pop(key, None)
        if before is not None and not before.ended:
            self._last[key] = before
            raise ApiError(409, "REDRIVE_IS_RUNNING")
        ended = [key for key, each in self._last.items() if each.ended]
        for oldest in ended[: max(0, len(ended) - _MAX_REDRIVES)]:
            del self._last[oldest]
        self._last[key] = started
        threading.Thread(target=started.run, args=(service().cluster.client,), daemon=True).start()


def _redrives() -> Redrives:
    found: Redrives = current_app.extensions["redrives"]
    return found


@messages.get("/topics/<topic>/<channel>/redrive")
def show_redrive(topic: str, channel: str) -> str:
    require(Role.OPERATOR)
    queries = Queries()
    stats = queries.channel_or_silent(topic, channel)
    origin = _origin_of(topic)
    to = request.args.get("to", "").strip() or (origin.topic_name if origin else "")
    return render_template(
        "messages/redrive.html",
        channel=stats,
        origin=origin,
        to=to,
        error=_refusal(topic, to) if request.args.get("to") else "",
        others=_channels_of(to),
        confirming=bool(request.args.get("to")) and not _refusal(topic, to),
        redrive=_redrives().last(topic, channel),
        silent=queries.silent,
        warnings=queries.warnings,
    )


@messages.post("/topics/<topic>/<channel>/redrive")
def act_redrive(topic: str, channel: str) -> Response:
    here = url_for("messages.show_redrive", topic=topic, channel=channel)
    if request.form.get("action") == "cancel":
        return perform(lambda: _cancel(topic, channel), "", here)
    to = request.form.get("to", "").strip()
    return perform(lambda: _start(topic, channel, to), "", here)


def _start(topic: str, channel: str, to: str) -> Errors:
    if refusal := _refusal(topic, to):
        return (refusal,)
    stats = Queries().channel(topic, channel)
    left = {part.node: part.depth for part in stats.nodes if part.depth}
    user, total = str(visitor()), sum(left.values())
    _redrives().start(Redrive(topic, channel, to, total, left, user, service().now()))
    actions.audit_redrive(f"of {count_of(total, 'message')} begun", topic, channel, to)
    return ()


def _cancel(topic: str, channel: str) -> Errors:
    last = _redrives().last(topic, channel)
    if last is None or last.ended:
        return ("No redrive of this channel is running.",)
    last.cancelled = True
    actions.audit_redrive("cancelled", topic, channel, last.to)
    return ()


def _refusal(topic: str, to: str) -> str:
    if not is_valid_name(to):
        return "The name of a topic has 1 to 64 letters, digits, dots, underscores and dashes."
    return "The messages are in this topic already." if to == topic else ""


def _origin_of(topic: str) -> ChannelStats | None:
    """The channel from which the dead letters in `topic` come, if that is known."""
    for each in current_snapshot().topics:
        for channel in each.channels:
            if topic in channel.dead_letter_topics:
                return channel
    return None


def _channels_of(name: str) -> list[str]:
    found = [topic for topic in current_snapshot().topics if topic.topic_name == name]
    return [channel.channel_name for topic in found for channel in topic.channels]


# --- Rewinds ----------------------------------------------------------------------------------------------------------


@messages.get("/topics/<topic>/<channel>/rewind")
def show_rewind(topic: str, channel: str) -> str:
    """The form; with `to`, also what a rewind to this place would bring on each node."""
    require(Role.OPERATOR)
    return _rewind_page(topic, channel, request.args)


@messages.post("/topics/<topic>/<channel>/rewind")
def act_rewind(topic: str, channel: str) -> str:
    check_form()
    require(Role.OPERATOR)
    form = request.form
    drops, to = form.get("drop_pending") == "1", form.get("to", "").strip()
    moved = actions.rewind(form.getlist("node"), topic, channel, to, drops_pending=drops)
    return _rewind_page(topic, channel, {}, moved, to)


def _rewind_page(
    topic: str, channel: str, values: Mapping[str, str], moved: Sequence[Moved] = (), moved_to: str = ""
) -> str:
    queries = Queries(STATS_SHARE)
    stats = queries.topic_or_silent(topic)
    found = next((each for each in stats.channels if each.channel_name == channel), None)
    if found is None and not queries.silent:
        raise ApiError(404, "CHANNEL_NOT_FOUND")
    with_log = {part.node for part in stats.nodes if part.retained is not None}
    nodes = [part.node for part in found.nodes if part.node in with_log] if found else []
    to, node = values.get("to", "").strip(), values.get("node", "")
    chosen = [node] if node in nodes else nodes
    error = ""
    planned: Sequence[Retained] = ()
    if to and chosen:
        try:
            to = actions.place(to, chosen)
        except ApiError as failure:
            error = actions.explanation(failure)
        else:
            drop = {"drop_pending": "true"} if values.get("drop_pending") else {}
            planned = query_retained(queries.client, chosen, topic, at=to, channel=channel, **drop)
    rate = service().history.rate(stats.key)
    return render_template(
        "messages/rewind.html",
        topic=stats,
        channel=channel,
        nodes=nodes,
        others=[part.node for part in found.nodes if part.node not in with_log] if found else [],
        values=values,
        to=to,
        node=node,
        error=error,
        planned=planned,
        possible=[each for each in planned if not each.error],
        moved=moved,
        moved_to=moved_to,
        failed=[each for each in moved if each.error],
        charts=charts_of(stats.key, stats.waiting, rate, service().now()),
        silent=queries.silent,
        warnings=queries.warnings,
    )
