"""nsqlookupd's figures as Prometheus reads them."""

from prometheus_client.parser import text_string_to_metric_families

from tests.web.test_nsqlookupd_api import Nsqlookupd


def scrape(nsqlookupd):
    page = nsqlookupd.call("GET", "/metrics").body.decode()
    families = text_string_to_metric_families(page)
    return {(each.name, *each.labels.values()): each.value for family in families for each in family.samples}


def test_what_is_known_is_counted():
    nsqlookupd = Nsqlookupd()
    nsqlookupd.joins("n1", "orders", "orders:archive", "orders:mail")
    nsqlookupd.moment += 301.0
    nsqlookupd.joins("n2", "orders", "clicks")
    nsqlookupd.call("POST", "/topic/tombstone?topic=clicks&node=n2:4151")
    found = scrape(nsqlookupd)
    assert found["nsqlookupd_nodes", "active"] == 1
    assert found["nsqlookupd_nodes", "inactive"] == 1
    assert (found["nsqlookupd_topics",], found["nsqlookupd_channels",], found["nsqlookupd_tombstones",]) == (2, 2, 1)


def test_it_is_ready_as_long_as_it_answers():
    assert Nsqlookupd().call("GET", "/readyz").status == 200
