"""Logging in and out, where there is a user file."""

import logging

from flask import Blueprint, Response, redirect, render_template, request, session, url_for

from nsq_compat.web.admin import access
from nsq_compat.web.admin.access import check_form, service, visitor
from nsq_compat.web.admin.users import Role, Users
from nsq_compat.web.responses import ApiError

log = logging.getLogger(__name__)

login = Blueprint("login", __name__)


@login.get("/login")
def show() -> str:
    _must_be_used()
    return render_template("login/show.html", next=_own_path(request.args.get("next", "")))


@login.post("/login")
def log_in() -> "Response | tuple[str, int]":
    users = _must_be_used()
    check_form()
    name = request.form.get("name", "")
    wanted = _own_path(request.form.get("next", ""))
    if access.log_in(users, name, request.form.get("password", "")) is Role.NOBODY:
        return render_template("login/show.html", next=wanted, failed=True, name=name), 401
    session.clear()
    session["user"] = name
    log.info("AUDIT: %s logged in as %s (%s)", request.remote_addr, name, users.role_of(name).name.lower())
    return redirect(request.script_root + wanted if wanted else url_for("home.show"), 303)  # type: ignore[return-value]


@login.post("/logout")
def log_out() -> Response:
    check_form()
    log.info("AUDIT: %s logged out", visitor().name)
    session.clear()
    return redirect(url_for("login.show"), 303)  # type: ignore[return-value]


def _must_be_used() -> Users:
    users = service().users
    if users is None:
        raise ApiError(404, "NOT_FOUND")
    return users


def _own_path(path: str) -> str:
    """The path if it is one of ours: nobody is sent elsewhere after logging in."""
    return path if path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable() else ""
