"""What the forms of the pages do: checked, done, and the outcome shown on the next page."""

from collections.abc import Callable

from flask import Response, flash, redirect, request

from nsq_compat.cluster.fan_out import AllFailed
from nsq_compat.web.admin import acting
from nsq_compat.web.admin.access import check_form, require
from nsq_compat.web.admin.users import Role

_MOST_SHOWN = 5
_LONGEST_SHOWN = 200

Errors = tuple[str, ...]


def submitted(name: str) -> str:
    return request.form.get(name, "")


def perform(act: Callable[[], Errors], done: str, next_url: str, role: Role = Role.OPERATOR) -> Response:
    """Do it if the form is ours and the visitor may; then go to `next_url`, which shows how it went."""
    check_form()
    require(role)
    try:
        errors = act()
    except AllFailed as failure:
        errors = (str(failure),)
    if errors:
        # The outcome travels in a cookie, which is small.
        for error in errors[:_MOST_SHOWN]:
            flash(error[:_LONGEST_SHOWN], "error")
        if len(errors) > _MOST_SHOWN:
            flash(f"and {len(errors) - _MOST_SHOWN} more", "error")
    else:
        flash(done, "done")
    return redirect(next_url, 303)  # type: ignore[return-value]


def change(topic: str, channel: str, next_url: str) -> Response:
    """Pause, unpause or empty, as the form says."""
    action, node = submitted("action"), submitted("node")
    what = f"{topic}/{channel}" if channel else topic
    where = f" on {node}" if node else ""
    done = {"pause": "Paused", "unpause": "Unpaused", "empty": "Emptied"}[action]
    return perform(
        lambda: acting.change(action, topic, channel, node),
        f"{done} {what}{where}.",
        next_url,
        acting.CHANGES[action],
    )
