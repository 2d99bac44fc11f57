"""/counter: how many messages all channels have been given, counting on."""

from flask import Blueprint, render_template

from nsq_compat.web.admin.access import service
from nsq_compat.web.admin.gathering import Gathering
from nsq_compat.web.admin.looking import timeframe

counter = Blueprint("counter", __name__)

_MOST_SHOWN = 20


@counter.get("/counter")
def show() -> str:
    gathering = Gathering(service().cluster)
    totals: dict[tuple[str, str], int] = {}
    for channel in gathering.channels_everywhere():
        key = (channel.topic_name, channel.channel_name)
        totals[key] = totals.get(key, 0) + channel.message_count
    history = service().history
    busiest = sorted(totals, key=lambda key: -(history.rate(*key) or 0))[:_MOST_SHOWN]
    return render_template(
        "counter/show.html",
        total=sum(totals.values()),
        rate=sum(history.rate(*key) or 0 for key in totals),
        busiest=[(*key, totals[key], history.rate(*key)) for key in busiest],
        warnings=gathering.warnings,
        timeframe=timeframe(),
    )
