"""/metrics, /livez and /readyz of any daemon."""

from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
from prometheus_client.parser import text_string_to_metric_families as prometheus_text

from nsq_compat import __version__, build
from nsq_compat.session.http_message import Request
from nsq_compat.web.application import Application
from nsq_compat.web.metrics import READY, Metrics, monitoring_routes


def asked(path: str, accept: str = "", reason: str = READY, metrics: Metrics | None = None):
    application = Application(monitoring_routes(metrics or Metrics("nsqd"), lambda: reason))
    headers = {b"accept": accept.encode()} if accept else {}
    return application.respond(Request("GET", path.encode(), path, b"", headers, b"", "127.0.0.1:5000"))


def test_metrics_have_the_accepted_format():
    [(_, plain)] = asked("/metrics").headers
    assert plain.startswith("text/plain; version=0.0.4")
    [(_, better)] = asked("/metrics", "application/openmetrics-text; version=1.0.0,text/plain;q=0.5").headers
    assert better.startswith("application/openmetrics-text; version=1.0.0")


def test_both_formats_can_be_parsed_and_have_the_same_values():
    metrics = Metrics("nsqd")
    metrics.observe_lag(0.003)
    for accept, parse in (("", prometheus_text), ("application/openmetrics-text; version=1.0.0", open_metrics)):
        families = list(parse(asked("/metrics", accept, metrics=metrics).body.decode()))
        samples = {(sample.name, sample.labels.get("le")): sample for family in families for sample in family.samples}
        assert samples["nsqd_event_loop_lag_seconds_bucket", "0.0025"].value == 0
        assert samples["nsqd_event_loop_lag_seconds_bucket", "0.005"].value == 1
        versions = {"version": "1.3.0", "nsq_compat": __version__, "build": build()}
        assert samples["nsqd_build_info", None].labels == versions
        assert samples["process_resident_memory_bytes", None].value > 1e6


def test_a_daemon_is_live_even_if_it_is_not_ready():
    assert (asked("/livez").status, asked("/livez").body) == (200, b"OK")
    assert (asked("/readyz").status, asked("/readyz").body) == (200, b"OK")
    refusal = asked("/readyz", reason="NOK - no space left on device")
    assert (refusal.status, refusal.body) == (503, b"NOK - no space left on device")
    assert asked("/livez", reason="NOK").status == 200


def test_probes_leave_no_log_lines(caplog):
    with caplog.at_level("DEBUG"):
        for path in ("/metrics", "/livez", "/readyz"):
            asked(path)
    assert caplog.records == []
