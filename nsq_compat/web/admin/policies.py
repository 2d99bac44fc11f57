"""/policies: which policies are in force on which node, what applies to which topic or channel, and changes of them.

Policies are edited in a form, reviewed, and then put into force on chosen nodes (PUT /config/policies of nsqd). A
node's config file stays as it is, and applies again after SIGHUP or a restart, so the pages show what to write there.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from flask import Blueprint, render_template, request

from nsq_compat.cluster import reading
from nsq_compat.cluster.http_client import call_all, named
from nsq_compat.cluster.reading import InvalidAnswer
from nsq_compat.cluster.stats import TopicStats
from nsq_compat.policy.policies import DEAD_LETTER, DROP, DROP_OLDEST, REJECT, Applied, Policies, Policy, PolicyError
from nsq_compat.web.admin import actions
from nsq_compat.web.admin.access import check_form, require
from nsq_compat.web.admin.formatting import UNKNOWN
from nsq_compat.web.admin.queries import STATS_SHARE, Queries
from nsq_compat.web.admin.tables import page_of
from nsq_compat.web.admin.users import Role
from nsq_compat.web.application import ApiError, cooperatively

policies = Blueprint("policies", __name__)

Written = Sequence[Mapping[str, Any]]

_MAX_POLICIES: Final = 1000
_MAX_CHARACTERS: Final = 256 * 1024
_FIELD: Final = re.compile(r"[1-9][0-9]{0,3}\.")
_INTEGERS: Final = (
    "max_attempts", "max_depth", "max_bytes", "burst", "max_in_flight", "retain_bytes", "max_topics", "max_channels",
)  # fmt: skip
SETTINGS: Final[Mapping[str, str]] = {
    "topic": "a regular expression for the whole name; empty for all topics",
    "channel": "a regular expression for the whole name; empty for all channels, and for topics without a channel",
    "max_attempts": "after so many attempts, a message goes to the dead-letter topic",
    "dead_letter_topic": "by default {topic}.{channel}.dead",
    "when_expired": "what happens to messages that have expired",
    "max_depth": "messages that may wait",
    "max_bytes": "bytes that may wait",
    "max_age": "how long a message may wait, such as 24h",
    "when_full": "what happens at these limits",
    "max_rate": "deliveries a second of one nsqd",
    "burst": "messages that may be delivered at once",
    "max_in_flight": "messages that may be in flight, at all consumers of a channel together",
    "exclusive": "whether one consumer gets all messages of a channel while the others stand by",
    "retain_for": "time after publishing for which a topic keeps its messages, such as 72h",
    "retain_bytes": "size of a topic's log on one node up to which it keeps its messages",
    "dedup_window": "time for which a topic recognizes the ids of repeated publishes, such as 10m",
    "max_topics": "topics of one nsqd that clients may create",
    "max_channels": "channels of one topic that clients may create",
    "max_creations_per_second": "topics and channels that clients may create in a second",
}
"""The settings of a policy, in the order of the form, with hints. Pages have the names of the config file."""
_TOPICS_AT_ONCE: Final = 100
"""At about 0.1 ms each."""
CHOICES: Final[Mapping[str, Mapping[str, str]]] = {
    "when_full": {"": UNKNOWN, REJECT: "refuse publishes", DROP_OLDEST: "drop the oldest messages"},
    "when_expired": {"": UNKNOWN, DROP: "drop them", DEAD_LETTER: "send them to the dead-letter topic"},
    "exclusive": {"": UNKNOWN, "true": "yes", "false": "no"},
}
"""The settings with a choice, and how the form names the values."""


# --- What is in force -------------------------------------------------------------------------------------------------


@dataclass
class Group:
    """Nodes with the same policies. The first group, the largest, is that to which the others are compared."""

    written: Written
    nodes: list[str] = field(default_factory=list)

    @property
    def toml(self) -> str:
        return to_toml(self.written)


@dataclass(frozen=True)
class NodePolicies:
    groups: Sequence[Group]
    unsupported: Sequence[str]
    """Nodes without policies: Go's nsqd."""
    errors: Sequence[str]

    def of(self, node: str) -> Written | None:
        return next((group.written for group in self.groups if node in group.nodes), None)


def _in_force(queries: Queries) -> NodePolicies:
    nodes = [node.http_address for node in queries.nodes()]
    client = queries.client.at_most(STATS_SHARE * queries.client.timeout)
    answer = call_all(nodes, lambda node: client.get(node, "config/policies"), client.timeout)
    groups: dict[str, Group] = {}
    errors: list[str] = []
    for node, written in answer.value:
        if problem := _problem_of(written):
            errors.append(f"{node}: invalid answer: {problem}")
            continue
        groups.setdefault(json.dumps(written, sort_keys=True), Group(written)).nodes.append(node)
    unsupported = []
    for node, error in zip(answer.unreachable, answer.errors, strict=True):
        # Go's nsqd does not have the option.
        if "INVALID_OPTION" in error:
            unsupported.append(node)
        else:
            errors.append(named(error))
    return NodePolicies(sorted(groups.values(), key=lambda group: -len(group.nodes)), unsupported, errors)


def _problem_of(written: object) -> str:
    """Why a page cannot show policies; empty if it can."""
    if not isinstance(written, list) or not all(isinstance(each, dict) for each in written):
        return "policies that are no list of tables"
    if len(written) > _MAX_POLICIES:
        return f"{len(written):,} policies, of which a page shows {_MAX_POLICIES:,} at most"
    if any(isinstance(value, dict | list) for each in written for value in each.values()):
        return "policies with nested settings"
    size = sum(len(key) + len(str(value)) for each in written for key, value in each.items())
    return (
        f"policies of {size:,} characters, of which a page shows {_MAX_CHARACTERS:,}" if size > _MAX_CHARACTERS else ""
    )


@dataclass(frozen=True)
class Applies:
    """What applies on some nodes: settings, and the numbers of the policies on these nodes."""

    settings: Mapping[str, Any]
    numbers: Sequence[int]
    nodes: Sequence[str]


@dataclass(frozen=True)
class Row:
    """A channel or, without a name of one, what a topic retains, and its window for publish ids."""

    topic_name: str
    channel_name: str
    applies: Sequence[Applies]
    """One for each kind; several mean that the nodes differ."""

    @property
    def has_policy(self) -> bool:
        return any(each.settings for each in self.applies)


def _rows(topic: TopicStats, parsed: Mapping[str, Policies]) -> Iterator[Row]:
    kept = []
    for part in topic.nodes:
        found = parsed.get(part.node)
        settings: Mapping[str, Any] = {}
        if found is not None:
            applied = found.for_channel(topic.topic_name, "")
            own = Applied(retention=applied.retention, dedup_window=applied.dedup_window)
            settings = own.to_settings(topic.topic_name, "")
        numbers = [] if found is None else found.keeping(topic.topic_name)
        kept.append(Applies(settings, numbers, [part.node]))
    yield Row(topic.topic_name, "", _joined(kept))
    for channel in topic.channels:
        parts = []
        for here in channel.nodes:
            found = parsed.get(here.node)
            parts.append(Applies(here.policy, [] if found is None else found.numbers_for(*channel.key), [here.node]))
        yield Row(topic.topic_name, channel.channel_name, _joined(parts))


def _joined(parts: Sequence[Applies]) -> list[Applies]:
    """Those that are the same on several nodes as one."""
    kinds: dict[str, Applies] = {}
    for each in parts:
        key = json.dumps([dict(each.settings), each.numbers], sort_keys=True)
        before = kinds.get(key)
        kinds[key] = replace(each, nodes=[*(before.nodes if before else ()), *each.nodes])
    return list(kinds.values())


@policies.get("/policies")
def show() -> str:
    queries = Queries()
    found = _in_force(queries)
    parsed = {node: one for group in found.groups if (one := _parsed(group.written)) for node in group.nodes}
    everything = request.args.get("all") == "1"
    rows = [
        row
        for topic in cooperatively(queries.snapshot().topics, _TOPICS_AT_ONCE)
        for row in _rows(topic, parsed)
        if row.has_policy or (everything and row.channel_name)
    ]
    page = page_of(
        rows,
        request.args,
        {"name": lambda each: (each.topic_name, each.channel_name)},
        lambda each: f"{each.topic_name}/{each.channel_name}",
    )
    return render_template(
        "policies/show.html",
        found=found,
        page=page,
        everything=everything,
        settings=SETTINGS,
        warnings=queries.warnings,
    )


def _parsed(written: Written) -> Policies | None:
    try:
        return Policies(list(written))
    except PolicyError:  # of another version of nsqd
        return None


# --- Editing ----------------------------------------------------------------------------------------------------------


@policies.get("/policies/edit")
def edit() -> str:
    """The form, with the policies of one node."""
    require(Role.ADMIN)
    queries = Queries()
    found = _in_force(queries)
    node = request.args.get("from", "")
    group = next((group for group in found.groups if node in group.nodes), found.groups[0] if found.groups else None)
    written = group.written if group else ()
    return _form(found, written, group.nodes if group else (), {}, queries)


@policies.post("/policies/edit")
def change() -> str | tuple[str, int]:
    """`action`: ``add`` a policy, ``edit`` again, ``review``, or ``apply``. Only the last one changes anything."""
    check_form()
    require(Role.ADMIN)
    action = request.form.get("action", "")
    written = _from_json() if "policies" in request.form else _from_fields()
    nodes = request.form.getlist("node")
    errors = problems(written)
    if action not in ("add", "edit", "review", "apply"):
        raise ApiError(400, "INVALID_ACTION")
    if not nodes and action in ("review", "apply"):
        errors[0, "node"] = "choose at least one node"
    if action == "apply" and not errors:
        outcome = actions.put_policies(nodes, written)
        return render_template("policies/outcome.html", outcome=outcome, toml=to_toml(written))
    queries = Queries()
    found = _in_force(queries)
    if action in ("review", "apply") and not errors:
        return render_template(
            "policies/review.html",
            written=written,
            encoded=json.dumps(written),
            toml=to_toml(written),
            changes={node: found.of(node) != list(written) for node in nodes},
            before={node: found.of(node) for node in nodes},
            warnings=queries.warnings,
        )
    if action == "add":
        return _form(found, [*written, {}], nodes, {}, queries)
    return _form(found, written, nodes, errors, queries), 400 if errors else 200


def _form(
    found: NodePolicies, written: Written, nodes: Sequence[str], errors: Mapping[tuple[int, str], str], queries: Queries
) -> str:
    return render_template(
        "policies/edit.html",
        found=found,
        written=written or [{}],
        nodes=nodes,
        errors=errors,
        settings=SETTINGS,
        integers=_INTEGERS,
        choices=CHOICES,
        unknown=sorted({key for policy in written for key in policy if key not in SETTINGS}),
        warnings=queries.warnings,
    )


def _from_json() -> list[dict[str, Any]]:
    try:
        written = reading.load(request.form["policies"].encode())
    except InvalidAnswer:
        raise ApiError(400, "INVALID_VALUE") from None
    if _problem_of(written):
        raise ApiError(400, "INVALID_VALUE")
    found: list[dict[str, Any]] = written
    return found


def _from_fields() -> list[dict[str, Any]]:
    """The policies of the form, by their positions, without those that are empty."""
    found: list[tuple[float, dict[str, Any]]] = []
    numbers = {int(name.partition(".")[0]) for name in request.form if _FIELD.match(name)}
    for number in sorted(numbers)[:_MAX_POLICIES]:
        texts = {key: request.form.get(f"{number}.{key}", "").strip() for key in SETTINGS}
        if policy := {key: _value(key, text) for key, text in texts.items() if text}:
            position = _value("max_rate", request.form.get(f"{number}.position", ""))
            found.append((position if isinstance(position, int | float) else float(number), policy))
    return [policy for _, policy in sorted(found, key=lambda pair: pair[0])]


def _value(key: str, text: str) -> Any:
    """The value that a field stands for; a text that is no number stays, so that its error is shown."""
    if key in _INTEGERS or key in ("max_rate", "max_creations_per_second"):
        for kind in (int, float):
            try:
                return kind(text)
            except ValueError:
                continue
    return {"true": True, "false": False}.get(text, text) if key == "exclusive" else text


def problems(written: Written) -> dict[tuple[int, str], str]:
    """The errors, by number of the policy, from 1, and setting; the setting may be empty."""
    found: dict[tuple[int, str], str] = {}
    for number, policy in enumerate(written, 1):
        rest = dict(policy)
        while True:
            try:
                Policy(number, rest)
            except PolicyError as error:
                text = str(error).removeprefix(f"policy {number}: ").removeprefix(f"{error.key}: ")
                is_first = all(each != number for each, _ in found)
                if not is_first and (not error.key or text.startswith("has no effect")):
                    break  # because of the values that were left out
                found[number, error.key] = text
                if rest.pop(error.key, None) is None:
                    break
            else:
                break
    return found


def to_toml(written: Written) -> str:
    """The policies as nsqd's config file has them."""
    tables = [
        "[[policies]]\n" + "".join(f"{key} = {_toml_value(value)}\n" for key, value in policy.items())
        for policy in written
    ]
    return "\n".join(tables)


def _toml_value(value: object) -> str:
    # JSON's strings and numbers are TOML's, except for one control character.
    return json.dumps(value).replace("\x7f", "\\u007f")
