"""/lookup: the nsqlookupds, topics that only they still know, and making new ones."""

from flask import Blueprint, render_template, request

from nsq_compat.web.admin.access import require, service
from nsq_compat.web.admin.gathering import Gathering
from nsq_compat.web.admin.paging import page_of
from nsq_compat.web.admin.users import Role

lookup = Blueprint("lookup", __name__)


@lookup.get("/lookup")
def show() -> str:
    if request.args.get("confirm") == "delete":
        require(Role.ADMIN)
        return render_template(
            "lookup/confirm.html", topic=request.args.get("topic", ""), channel=request.args.get("channel", "")
        )
    gathering = Gathering(service().cluster)
    lookupds = service().cluster.lookupds
    page = page_of(gathering.inactive_topics() if lookupds else [], request.args, {"name": str}, str)
    return render_template(
        "lookup/show.html",
        lookupds=lookupds,
        page=page,
        channels=gathering.channels_of(page.rows),
        nodes=[] if lookupds else gathering.nodes(),
        warnings=gathering.warnings,
    )
