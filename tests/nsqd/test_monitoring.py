"""Prometheus beside a live nsqd: what a scrape shows, and that alert rules and dashboard speak of nothing else."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
import yaml
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from nsq_conformance.cluster import eventually
from nsq_conformance.nsqadmin_process import NsqadminProcess, installed_nsqadmin
from nsq_conformance.nsqd_process import NsqdProcess, installed_nsqd
from nsq_conformance.nsqlookupd_process import NsqlookupdProcess, installed_nsqlookupd
from tests.nsqd.conftest import connect

ROOT = Path(__file__).parents[2]
CONTRIB = ROOT / "contrib"
OPERATIONS = ROOT / "docs" / "operations.md"
RULES = CONTRIB / "prometheus" / "alerts.yml"
DASHBOARD = CONTRIB / "grafana" / "nsqd.json"
LABELS = ("topic", "channel", "quantile")

Samples = dict[tuple[str, ...], float]


@pytest.fixture
def nsqd(tmp_path: Path) -> Iterator[NsqdProcess]:
    """Its standby does not answer."""
    options = ["--durability=fsync", "--e2e-processing-latency-percentile=0.99", "--broadcast-address=127.0.0.1"]
    options += ["--mirror-to=127.0.0.1:1", "--mirror-accept"]
    with NsqdProcess(installed_nsqd(), tmp_path, options=options) as process:
        yield process


def scrape(address: str) -> Samples:
    request = Request(f"http://{address}/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    with urlopen(request, timeout=20) as response:
        families = list(text_string_to_metric_families(response.read().decode()))
    return {
        (sample.name, *(sample.labels[label] for label in LABELS if label in sample.labels)): sample.value
        for family in families
        for sample in family.samples
    }


def test_a_scrape_shows_topics_channels_consumers_the_log_and_the_disk(nsqd):
    nsqd.create_channel("orders", "archive")
    with connect(nsqd) as client:
        client.publishes(b"1", b"2", b"3", topic=b"orders")
        client.subscribes(b"orders", b"archive", ready=1)
        assert len(client.takes(1)) == 1
        found = scrape(nsqd.http_address)
    channel = ("orders", "archive")
    assert found["nsqd_topic_messages_total", "orders"] == 3
    assert found["nsqd_channel_depth", *channel] == 2
    assert found["nsqd_channel_in_flight", *channel] == 1
    assert found["nsqd_channel_consumers", *channel] == found["nsqd_channel_ready", *channel] == 1
    assert found["nsqd_topic_log_bytes", "orders"] > 3
    assert found["nsqd_fsync_seconds_count",] >= 3
    assert found["nsqd_connections",] == 1


def test_a_scrape_shows_what_is_retained_and_read(nsqd):
    assert nsqd.asks("PUT", "/config/policies", b'[{"topic":"orders","retain_for":"1h"}]').status == 200
    for body in (b"1", b"2"):
        assert nsqd.asks("POST", "/pub?topic=orders", body).status == 200
    assert nsqd.asks("POST", "/pub?topic=others", b"1").status == 200
    assert nsqd.asks("GET", "/topic/read?topic=orders&from=0").status == 200
    assert nsqd.asks("POST", "/topic/empty?topic=orders").status == 200
    assert nsqd.asks("GET", "/topic/read?topic=orders&from=1").status == 410
    assert nsqd.asks("POST", "/pub?topic=orders", b"3").status == 200
    found = scrape(nsqd.http_address)
    assert found["nsqd_topic_retained_bytes", "orders"] == found["nsqd_topic_log_bytes", "orders"]
    assert 0 <= found["nsqd_topic_retained_seconds", "orders"] < 60
    assert found["nsqd_topic_retained_bytes", "others"] == 0
    assert ("nsqd_topic_retained_seconds", "others") not in found
    assert found["nsqd_topic_released_segments_total", "orders"] == 0
    assert (found["nsqd_offset_reads_total",], found["nsqd_offset_gone_total",]) == (1, 1)


def test_a_scrape_shows_a_standby_that_is_away_and_that_there_is_no_copy(nsqd):
    found = scrape(nsqd.http_address)
    assert found["nsqd_mirror_in_sync",] == found["nsqd_mirror_changes_behind",] == 0
    assert 0 <= found["nsqd_mirror_state_seconds",] < 60
    assert found["nsqd_mirror_primaries",] == found["nsqd_mirror_primaries_connected",] == 0


def test_many_scrapes_leak_nothing_and_the_daemon_still_stops(nsqd):
    before = scrape(nsqd.http_address)["process_open_fds",]
    for _ in range(50):
        after = scrape(nsqd.http_address)
    assert after["process_open_fds",] <= before + 2
    nsqd.send_signal(signal.SIGTERM)
    assert nsqd._process.wait(20) == 0


# --- contrib/ ---------------------------------------------------------------------------------------------------------


def metric_names(expression: str) -> set[str]:
    """The metrics a query asks for."""
    bare = re.sub(r'"[^"]*"|\{[^}]*\}', "", expression)
    return set(re.findall(r"\b(?:nsq[a-z]*|process)_[a-z0-9_]+\b", bare))


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def queries(panel: dict[str, Any]) -> list[str]:
    return [target["expr"] for target in panel.get("targets", ())]


def test_rules_and_dashboard_use_only_existing_metrics(nsqd):
    assert nsqd.asks("PUT", "/config/policies", b'[{"topic":"orders","retain_for":"1h"}]').status == 200
    assert nsqd.asks("POST", "/pub?topic=orders", b"1").status == 200
    nsqd.create_channel("orders", "archive")
    names: set[str] = set()
    with (
        NsqlookupdProcess(installed_nsqlookupd()) as nsqlookupd,
        NsqadminProcess(installed_nsqadmin(), options=[f"--nsqd-http-address={nsqd.http_address}"]) as nsqadmin,
    ):
        while "nsqadmin_nodes" not in names:
            for daemon in (nsqd, nsqlookupd, nsqadmin):
                names |= {key[0] for key in scrape(daemon.http_address)}
    panels = json.loads(DASHBOARD.read_text())["panels"]
    expressions = [rule["expr"] for rule in rules()] + [each for panel in panels for each in queries(panel)]
    assert len(expressions) > 25
    for expression in expressions:
        wanted = metric_names(expression)
        assert wanted, expression
        assert wanted <= names, expression


def promtool(*arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
    """Run Prometheus's checker, which scripts/test puts into .venv."""
    program = shutil.which("promtool", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if program is None:
        pytest.fail("this test needs promtool, which scripts/test downloads")
    return subprocess.run([program, *arguments], input=text, capture_output=True, text=True, timeout=60)


def test_promtool_accepts_the_metrics_of_all_daemons_with_every_kind_of_series(nsqd):
    nsqd.create_channel("orders", "archive")
    with connect(nsqd) as client:
        client.publishes(b"1", topic=b"orders").subscribes(b"orders", b"archive", ready=1)
        client.finishes(client.takes(1))
        eventually(
            lambda: scrape(nsqd.http_address)["nsqd_channel_e2e_latency_seconds", "orders", "archive", "0.99"] > 0
        )
    options = [f"--nsqd-http-address={nsqd.http_address}", "--sample-interval=1s"]
    with (
        NsqlookupdProcess(installed_nsqlookupd()) as nsqlookupd,
        NsqadminProcess(installed_nsqadmin(), options=options) as nsqadmin,
    ):
        eventually(lambda: ("nsqadmin_nodes",) in scrape(nsqadmin.http_address))
        for daemon in (nsqd, nsqlookupd, nsqadmin):
            page = daemon.asks("GET", "/metrics").body.decode()
            done = promtool("check", "metrics", text=page)
            assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_promtool_accepts_the_alert_rules():
    done = promtool("check", "rules", str(RULES))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("alert", "fires_after", "well", "series"),
    [
        ("NsqdNotMirrored", "2m", "30s", {'nsqd_mirror_in_sync{instance="n1"}': "1x3 0x30"}),
        (
            "NsqdPrimaryNotConnected",
            "2m",
            "45s",
            {
                'nsqd_mirror_primaries{instance="n1"}': "2x33",
                'nsqd_mirror_primaries_connected{instance="n1"}': "2x3 1x29",
            },
        ),
    ],
)
def test_an_alert_fires_when_mirroring_fails_and_not_before(tmp_path, alert, fires_after, well, series):
    summary = next(rule for rule in rules() if rule["alert"] == alert)["annotations"]["summary"]
    fired = {
        "exp_labels": {"severity": "critical", "instance": "n1"},
        "exp_annotations": {"summary": summary.replace("{{ $labels.instance }}", "n1")},
    }
    tests = {
        "interval": "15s",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "alert_rule_test": [
            {"alertname": alert, "eval_time": well, "exp_alerts": []},
            {"alertname": alert, "eval_time": fires_after, "exp_alerts": [fired]},
        ],
    }
    path = tmp_path / "tests.yml"
    path.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "15s", "tests": [tests]}))
    done = promtool("test", "rules", str(path))
    assert done.returncode == 0, done.stdout + done.stderr


def test_rules_have_the_fields_of_prometheus_and_a_sentence():
    found = rules()
    assert len({rule["alert"] for rule in found}) == len(found)
    for rule in found:
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"]["summary"]
        for opening, closing in ("()", "[]", "{}"):
            assert rule["expr"].count(opening) == rule["expr"].count(closing)


def test_the_operations_page_says_what_to_do_about_each_alert():
    page = OPERATIONS.read_text()
    assert [rule["alert"] for rule in rules() if f"`{rule['alert']}`" not in page] == []


def test_panels_of_the_dashboard_do_not_overlap():
    cells: set[tuple[int, int]] = set()
    panels = json.loads(DASHBOARD.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        covered = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not covered & cells
        cells |= covered
