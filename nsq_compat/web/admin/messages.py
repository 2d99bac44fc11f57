"""Messages looked at without taking them: what waits in a channel, and what was published to a topic last."""

from flask import Blueprint, render_template, request

from nsq_compat.cluster.peek import peek, recent
from nsq_compat.web.admin.access import require, service
from nsq_compat.web.admin.gathering import Gathering
from nsq_compat.web.admin.users import Role

messages = Blueprint("messages", __name__)

_LIMITS = ("10", "25", "100")


@messages.get("/topics/<topic>/<channel>/messages")
def show(topic: str, channel: str) -> str:
    # Figures are for everybody who may look; what people have written to each other is not.
    require(Role.OPERATOR)
    gathering = Gathering(service().cluster)
    stats = gathering.channel(topic, channel)
    limit = _limit()
    nodes = [part.node for part in stats.nodes]
    return render_template(
        "messages/show.html",
        channel=stats,
        looks=peek(service().cluster.client, nodes, topic, channel, int(limit)),
        limit=limit,
        limits=_LIMITS,
        warnings=gathering.warnings,
    )


@messages.get("/messages/<topic>")
def tail(topic: str) -> str:
    """Not below /topics: a channel might be called "messages"."""
    require(Role.OPERATOR)
    gathering = Gathering(service().cluster)
    stats = gathering.topic(topic)
    limit = _limit()
    looks = recent(service().cluster.client, [part.node for part in stats.nodes], topic, int(limit))
    arrived = [(look.node, message) for look in looks for message in look.messages]
    arrived.sort(key=lambda pair: (pair[1].timestamp, pair[1].id), reverse=True)
    return render_template(
        "messages/tail.html",
        topic=stats,
        arrived=arrived[: int(limit)],
        unable=[look for look in looks if look.error],
        limit=limit,
        limits=_LIMITS,
        warnings=gathering.warnings,
    )


def _limit() -> str:
    limit = request.args.get("limit", "")
    return limit if limit in _LIMITS else _LIMITS[0]
