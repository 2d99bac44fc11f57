"""/policies: what is in force and what applies, editing with errors by field, and putting into force on nodes."""

import json
import logging
import re
import tomllib
from html import unescape

import pytest

from nsq_compat.policy.policies import Policies
from nsq_compat.web.admin.policies import problems, to_toml
from tests.web.admin.conftest import Form, channel_json, shown, topic_json

DEAD = {"topic": r"orders\..*", "max_attempts": 5}
FULL = {"max_depth": 1000, "when_full": "drop-oldest"}


@pytest.fixture
def other(make_nsqd, nsqd, service):
    """A second node, with other policies."""
    other = make_nsqd()
    for node, written in ((nsqd, [DEAD, FULL]), (other, [FULL])):
        node.says("config/policies", written)
        policy = {"max_attempts": 5} if node is nsqd else {"max_depth": 1000}
        node.has(topic_json("orders.eu", channel_json("archive", policy=policy), channel_json("mail")))
    service.cluster.nsqds = [nsqd.address, other.address]
    return other


def test_nodes_that_differ_are_marked_and_what_applies_names_policy_and_node(browser, nsqd, other):
    page = shown(browser.get("/policies"))
    assert page.count("On 1 node") == 2
    assert page.count("The nodes do not have the same policies.") == 1
    assert f"orders.eu / archive nodes differ {nsqd.address} 1, 2 max_attempts 5" in page
    assert f"orders.eu / archive nodes differ {other.address} 1 max_depth 1,000" in page
    assert "orders.eu / mail" not in page
    assert "orders.eu / mail" in shown(browser.get("/policies?all=1"))
    assert "No topic or channel with “nothing” in its name has a policy." in shown(browser.get("/policies?q=nothing"))


def test_nodes_with_the_same_policies_are_one_group(browser, nsqd, other):
    for node in (nsqd, other):
        node.says("config/policies", [FULL])
        node.has(topic_json("orders.eu", channel_json("archive", policy={"max_depth": 1000})))
    page = shown(browser.get("/policies"))
    assert "On 2 nodes all the same" in page
    assert "max_depth: 1,000" in page
    assert "orders.eu / archive both nodes 1 max_depth 1,000" in page


def test_what_a_topic_retains_is_among_what_applies(browser, nsqd, other):
    for node, hours in ((nsqd, 72), (other, 24)):
        node.says("config/policies", [FULL, {"topic": "orders.*", "retain_for": f"{hours}h"}])
    page = shown(browser.get("/policies"))
    assert f"orders.eu nodes differ {nsqd.address} 2 retain_for 72h" in page
    assert f"orders.eu nodes differ {other.address} 2 retain_for 24h" in page
    assert "orders.eu / mail" not in page


def test_gos_nsqd_has_no_policies_and_a_silent_node_is_named(browser, nsqd, other):
    nsqd.says("config/policies", {"message": "INVALID_OPTION"}, 400)
    other.says("config/policies", b"", 500)
    page = shown(browser.get("/policies"))
    assert f"Without policies, because only the nsqd of nsq_compat has them: {nsqd.address}" in page
    assert f"{other.address}: got response 500" in page


def test_a_node_that_hangs_holds_no_page(browser, nsqd, hanging):
    nsqd.says("config/policies", [FULL])
    page = shown(browser.get("/policies?all=1"))
    assert f"{hanging.address}: timeout" in page
    assert "max_depth: 1,000" in page
    assert "orders / archive" in page, "the snapshot has its share of the time"


# --- The form ---------------------------------------------------------------------------------------------------------


def values_of(page):
    """The values of the form's fields, by name."""
    found = re.findall(r'<input[^>]* name="([0-9]+\.[a-z_]+)" value="([^"]*)"', unescape(page.text))
    return {name: value for name, value in found if value}


@pytest.fixture
def change(browser, other):
    submit = Form(browser)

    def send(action, **fields):
        return submit("/policies/edit", page="/policies/edit", action=action, **fields)

    return send


def test_the_form_has_the_policies_of_a_node_and_its_group(browser, nsqd, other):
    page = browser.get(f"/policies/edit?from={nsqd.address}")
    assert values_of(page) == {
        "1.position": "1", "1.topic": r"orders\..*", "1.max_attempts": "5", "2.position": "2", "2.max_depth": "1000",
    }  # fmt: skip
    assert '<option value="drop-oldest" selected>' in page.text
    assert re.findall(r'name="node" value="([^"]*)" checked', page.text) == [nsqd.address]


def test_a_policy_is_added_removed_and_moved(change):
    fields = {"1.max_rate": "10", "1.position": "2", "2.max_depth": "5", "2.position": "1", "3.topic": ""}
    page = change("add", **fields)
    assert values_of(page) == {
        "1.position": "1", "1.max_depth": "5", "2.position": "2", "2.max_rate": "10", "3.position": "3",
    }  # fmt: skip


def test_a_form_keeps_retention_and_the_window_for_ids(browser, change, nsqd, other):
    kept = {"topic": "orders", "retain_for": "72h", "retain_bytes": 5000, "dedup_window": "10m"}
    nsqd.says("config/policies", [kept])
    page = browser.get(f"/policies/edit?from={nsqd.address}")
    assert "would be lost" not in page.text
    fields = values_of(page)
    assert fields == {
        "1.position": "1", "1.topic": "orders", "1.retain_for": "72h", "1.retain_bytes": "5000",
        "1.dedup_window": "10m",
    }  # fmt: skip
    review = change("review", node=[nsqd.address], **fields)
    assert f"{nsqd.address}: no change" in unescape(shown(review))
    assert "retain_bytes: 5,000" in shown(browser.get("/policies"))
    assert "dedup_window: 10m" in shown(browser.get("/policies"))


def test_each_invalid_field_has_its_error(change, nsqd):
    fields = {
        "1.topic": "(", "1.max_attempts": "many", "1.dead_letter_topic": "no name", "1.max_age": "soon",
        "2.burst": "5", "2.max_depth": "7", "3.topic": "orders",
    }  # fmt: skip
    page = change("review", node=nsqd.address, **fields)
    assert page.status_code == 400
    text = shown(page)
    assert "6 errors. Correct the marked fields." in text
    for error in (
        "not a regular expression",
        "must be an integer from 1 to 65535",
        "must be the name of a topic",
        "invalid duration",
        "has no effect without max_rate",
        "needs max_attempts, max_depth",
    ):
        assert error in text
    assert page.text.count('aria-invalid="true"') == 6
    assert values_of(page)["1.max_attempts"] == "many"


def test_no_node_is_an_error_too(change):
    assert "choose at least one node" in shown(change("review", **{"1.max_depth": "5"}))


# --- Review and apply -------------------------------------------------------------------------------------------------


def test_a_review_shows_what_changes_and_the_config_file_and_changes_nothing(change, nsqd, other):
    page = change("review", node=[nsqd.address, other.address], **{"1.max_depth": "1000", "1.when_full": "drop-oldest"})
    text = unescape(shown(page))
    assert "Put 1 policy into force on 2 nodes?" in text
    assert f"{nsqd.address}: replaces 2 policies" in text
    assert f"{other.address}: no change" in text
    assert "The config files of the nodes keep their old policies. SIGHUP and a restart return to them." in text
    assert '[[policies]] max_depth = 1000 when_full = "drop-oldest"' in text
    assert not any(heard.startswith("PUT") for heard in [*nsqd.heard, *other.heard])


def test_policies_are_put_into_force_on_the_chosen_nodes_and_each_result_is_shown(change, nsqd, other, caplog):
    nsqd.says("config/policies", {"message": "INVALID_VALUE: policy 1: max_depth: of another version"}, 400)
    with caplog.at_level(logging.INFO):
        page = change("apply", node=[nsqd.address, other.address], policies=json.dumps([FULL]))
    text = unescape(shown(page))
    assert "The policies are in force on 1 of 2 nodes" in text
    assert f"{other.address} in force" in text
    assert f"{nsqd.address} failed" in text
    assert "of another version" in text
    assert f"PUT config/policies {json.dumps([FULL], separators=(',', ':'))}" in other.heard
    audited = [line for line in caplog.messages if line.startswith("AUDIT")]
    assert [("failed" in line, "1 policy" in line) for line in audited] == [(True, True), (False, True)]


def test_what_was_reviewed_can_be_edited_again(change, nsqd):
    page = change("edit", node=nsqd.address, policies=json.dumps([DEAD]))
    assert values_of(page)["1.topic"] == DEAD["topic"]


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        ([{"max_depth": 5}] * 1001, "1,001 policies, of which a page shows 1,000 at most"),
        ([{"topic": "x" * 300_000}], "policies of 300,005 characters, of which a page shows 262,144"),
        ([{"topic": [["x"]]}], "policies with nested settings"),
        ({}, "policies that are no list of tables"),
    ],
)
def test_a_node_whose_policies_no_page_can_show_is_named(browser, nsqd, other, written, problem):
    other.says("config/policies", written)
    for path in ("/policies", "/policies/edit"):
        page = browser.get(path)
        assert page.status_code == 200
        assert len(page.data) < 100_000
    assert f"{other.address}: invalid answer: {problem}" in shown(browser.get("/policies"))


def test_lone_surrogates_in_the_policies_of_a_node_hold_no_page(browser, nsqd, other):
    other.says("config/policies", b'[{"topic": "a\\ud800", "\\udc00": 1}]')
    other.has(topic_json("orders.eu", channel_json("archive", policy={"\udfff": 1})))
    for path in ("/policies", f"/policies/edit?from={other.address}", "/topics/orders.eu/archive"):
        assert browser.get(path).status_code == 200
    assert "topic: a?" in shown(browser.get("/policies"))


def test_a_hundred_and_more_policies_keep_their_places_in_the_form(change, nsqd):
    fields = {f"{number}.max_depth": str(number) for number in range(1, 151)}
    page = shown(change("review", node=nsqd.address, **fields))
    assert "max_depth = 150" in page


@pytest.mark.parametrize("policies", ["{", "[1]", "17", '[{"max_rate": NaN}]', '[{"topic": ["a"]}]'])
def test_invalid_json_is_refused(change, nsqd, policies):
    assert change("apply", node=nsqd.address, policies=policies).status_code == 400


def test_invalid_policies_and_foreign_nodes_are_not_put(change, nsqd):
    assert change("apply", node=nsqd.address, policies='[{"max_depth": 0}]').status_code == 400
    assert change("apply", node="10.0.0.9:1", policies=json.dumps([FULL])).status_code == 404
    assert change("explode", node=nsqd.address, policies="[]").status_code == 400
    assert not any(heard.startswith("PUT") for heard in nsqd.heard)


def test_only_administrators_edit_and_only_with_the_token(behind_login, nsqd, other):
    operator, admin = ("olga", "olga-pw"), ("ada", "ada-pw")
    assert behind_login.get("/policies", auth=operator).status_code == 200
    assert behind_login.get("/policies/edit", auth=operator).status_code == 403
    token = behind_login.get("/policies/edit", auth=admin).text.partition('name="csrf" value="')[2].partition('"')[0]
    form = {"action": "apply", "node": nsqd.address, "policies": json.dumps([FULL])}
    assert behind_login.post("/policies/edit", data=form, auth=admin).status_code == 403
    assert behind_login.post("/policies/edit", data={**form, "csrf": token}, auth=operator).status_code == 403
    assert behind_login.post("/policies/edit", data={**form, "csrf": token}, auth=admin).status_code == 200


def test_the_config_file_has_the_same_policies():
    written = [DEAD, FULL, {"channel": 'a"\\\x7fé', "max_rate": 0.5, "burst": 3}]
    assert tomllib.loads(to_toml(written)) == {"policies": written}
    assert to_toml([]) == ""


def test_problems_name_every_policy_once():
    assert problems([DEAD, FULL]) == {}
    assert problems([{"max_attempts": 0, "dead_letter_topic": "dead"}]) == {
        (1, "max_attempts"): "must be an integer from 1 to 65535"
    }
    assert problems([FULL, {"surprise": 1}]) == {(2, "surprise"): "unknown setting"}


def test_the_numbers_of_policies_that_apply():
    policies = Policies([DEAD, FULL, {"max_attempts": 9}, {"channel": "x", "max_rate": 1}])
    assert policies.numbers_for("orders.eu", "archive") == [1, 2]
    assert policies.numbers_for("other", "x") == [2, 3, 4]
