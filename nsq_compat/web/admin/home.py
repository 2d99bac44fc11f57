"""/: what needs attention, and the cluster in figures."""

from flask import Blueprint, render_template

from nsq_compat.cluster.attention import concerns
from nsq_compat.cluster.history import CLUSTER
from nsq_compat.web.admin.access import service
from nsq_compat.web.admin.looking import charts_of, current_snapshot, timeframe, topic_page, wants_day

home = Blueprint("home", __name__)

_MOST_SHOWN = 25


@home.get("/")
def show() -> str:
    snapshot = current_snapshot(service())
    found = concerns(snapshot, service().history)
    channels = [channel for topic in snapshot.topics for channel in topic.channels]
    return render_template(
        "home/show.html",
        snapshot=snapshot,
        warnings=snapshot.errors,
        concerns=found[:_MOST_SHOWN],
        more_concerns=max(0, len(found) - _MOST_SHOWN),
        page=topic_page(service(), snapshot),
        rate=service().history.rate(*CLUSTER),
        charts=charts_of(service(), *CLUSTER),
        day=wants_day(),
        figures={
            "Topics": len(snapshot.topics),
            "Channels": len(channels),
            "Nodes": len(snapshot.nodes),
            "Consumers": sum(channel.client_count for channel in channels),
            "Waiting": sum(topic.depth for topic in snapshot.topics) + sum(channel.depth for channel in channels),
            "In flight": sum(channel.in_flight_count for channel in channels),
        },
        timeframe=timeframe(),
    )
