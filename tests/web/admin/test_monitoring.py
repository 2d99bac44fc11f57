"""/metrics, /livez and /readyz of nsqadmin."""

from prometheus_client.parser import text_string_to_metric_families

from nsq_compat.cluster.snapshot import take_snapshot
from nsq_compat.web.admin.app import create_app
from nsq_compat.web.admin.monitoring import collect
from nsq_compat.web.admin.users import Users, make_line


def scrape(browser):
    families = text_string_to_metric_families(browser.get("/metrics").text)
    return {sample.name: sample.value for family in families for sample in family.samples}


def test_metrics_are_those_of_the_last_sample(service, browser):
    service.metrics.collect_from(lambda: collect(service.history))
    assert "nsqadmin_nodes" not in scrape(browser)
    service.history.add(take_snapshot(service.cluster, service.now()))
    found = scrape(browser)
    assert (found["nsqadmin_nodes"], found["nsqadmin_nodes_silent"]) == (1, 0)
    assert (found["nsqadmin_topics"], found["nsqadmin_channels"]) == (1, 2)
    assert (found["nsqadmin_topic_depth"], found["nsqadmin_channel_depth"]) == (7, 12304)


def test_probes_need_no_login(service):
    service.users = Users(make_line("ada", "admin", "secret"))
    browser = create_app(service).test_client()
    assert browser.get("/").status_code == 302
    for path in ("/livez", "/readyz", "/metrics"):
        assert browser.get(path).status_code == 200
