"""/counter: how many messages all channels have been given, counting on."""

from flask import Blueprint, render_template

from nsq_compat.cluster.history import History
from nsq_compat.cluster.statistics import ChannelStats
from nsq_compat.web.admin.access import service
from nsq_compat.web.admin.looking import current_snapshot, timeframe

counter = Blueprint("counter", __name__)

_MOST_SHOWN = 20


@counter.get("/counter")
def show() -> str:
    snapshot = current_snapshot(service())
    history = service().history
    channels = [channel for topic in snapshot.topics for channel in topic.channels]
    rows = [(each.topic_name, each.channel_name, each.message_count, _rate(history, each)) for each in channels]
    return render_template(
        "counter/show.html",
        total=sum(channel.message_count for channel in channels),
        rate=sum(rate for *_, rate in rows),
        busiest=sorted(rows, key=lambda row: -row[3])[:_MOST_SHOWN],
        warnings=snapshot.errors,
        timeframe=timeframe(),
    )


def _rate(history: History, channel: ChannelStats) -> float:
    return history.rate(channel.topic_name, channel.channel_name) or 0.0
