"""/topics/<topic>/<channel>/messages: what waits in a channel, looked at without taking it."""

from flask import Blueprint, render_template, request

from nsq_compat.cluster.peek import peek
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
    limit = request.args.get("limit", "")
    limit = limit if limit in _LIMITS else _LIMITS[0]
    nodes = [part.node for part in stats.nodes]
    return render_template(
        "messages/show.html",
        channel=stats,
        looks=peek(service().cluster.client, nodes, topic, channel, int(limit)),
        limit=limit,
        limits=_LIMITS,
        warnings=gathering.warnings,
    )
