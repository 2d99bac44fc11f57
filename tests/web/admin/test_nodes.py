"""Pages of nodes, and tombstones."""

from tests.web.admin.conftest import shown


def test_the_nodes_are_listed_with_their_health(browser, nsqd):
    text = shown(browser.get("/nodes"))
    assert "nsqd nodes ( 1 )" in text
    assert f"{nsqd.address} 1 {nsqd.port} 1.3.0 OK" in text
    assert "No nsqd has “other”" in shown(browser.get("/nodes?q=other"))


def test_a_node_shows_its_topics_and_clients(browser, nsqd):
    text = shown(browser.get(f"/nodes/{nsqd.address}"))
    assert "depth 7 (5 + 2 on disk), 20,000 messages published" in text
    assert "1 client of mail" in text
    assert browser.get("/nodes/other:1").status_code == 404


def test_a_tombstone_is_confirmed_and_set(browser, submit, nsqd):
    text = shown(browser.get(f"/nodes/{nsqd.address}?confirm=tombstone&topic=orders"))
    assert "12,311 messages" in text
    assert browser.get(f"/nodes/{nsqd.address}?confirm=tombstone&topic=x").status_code == 404
    assert submit(f"/nodes/{nsqd.address}", action="tombstone", topic="orders").status_code == 303
    assert nsqd.orders == ["topic/delete?topic=orders"]
    assert submit(f"/nodes/{nsqd.address}", action="x").status_code == 400
