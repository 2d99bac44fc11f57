from urllib.parse import parse_qs, urlsplit

import pytest

from nsq_compat.web.admin.graphite import Graphite
from nsq_compat.web.application import ApiError


@pytest.fixture
def graphite(service, nsqd):
    service.options.graphite_url = f"http://{nsqd.address}"
    return Graphite(service)


def test_targets_are_the_keys_nsqd_pushes(graphite):
    assert graphite.target("depth", "orders") == "sumSeries(stats.gauges.nsq.*.topic.orders.depth)"
    assert graphite.target("message_count", "orders", "mail#ephemeral") == (
        "sumSeries(stats.counters.nsq.*.topic.orders.channel.mailephemeral.message_count.count)"
    )
    assert graphite.target("counter") == "sumSeries(stats.counters.nsq.*.topic.*.channel.*.message_count.count)"
    assert graphite.memory_target("gc_runs", "10.0.0.1:4151") == "stats.counters.nsq.10_0_0_1_4151.mem.gc_runs.count"


def test_a_graph_has_a_small_and_a_large_form(graphite, nsqd):
    picture = graphite.picture("Messages", "message_count", ["t"], "2h")
    small, large = (parse_qs(urlsplit(url).query) for url in (picture.sparkline, picture.large))
    assert picture.sparkline.startswith(f"http://{nsqd.address}/render?")
    assert small["target"] == ['summarize(t,"60sec","avg")']
    assert small["from"] == ["-2h"]
    assert large["target"] == ['scale(summarize(t,"60sec","avg"),0.0166667)']
    assert (small["width"], large["width"]) == (["120"], ["800"])


def test_graphs_are_shown_if_graphite_is_configured(browser, graphite, nsqd):
    page = browser.get("/topics/orders?t=12h")
    assert f'src="http://{nsqd.address}/render?' in page.text
    assert "from=-12h" in page.text
    assert f"img-src 'self' data: http://{nsqd.address}" in page.headers["Content-Security-Policy"]
    assert "from=-12h" in browser.get("/topics/orders/mail").text, "the choice is kept"
    assert "/render" not in browser.get("/topics/orders?t=off").text
    for path in ("/topics", "/counter", f"/nodes/{nsqd.address}"):
        assert "/render?" in browser.get(f"{path}?t=1h").text


@pytest.mark.parametrize("host", ["graphite", "127.0.0.1:8080", "[::1]", "[fd00::1]:8080"])
def test_the_origin_of_graphs_is_that_of_graphite_without_user_and_password(graphite, service, host):
    service.options.graphite_url = f"https://user:p%40ss@{host}/some/path"
    assert graphite.origin == f"https://{host}"


@pytest.mark.parametrize(
    ("answer", "rate"),
    [
        ('[{"datapoints":[[120.0,1]]}]', "2.00"),
        ('[{"datapoints":[[-1,1]]}]', "N/A"),
        ('[{"datapoints":[[741,1]]}]', "12.35"),
    ],
)
def test_a_rate_is_the_first_datapoint_per_second(browser, graphite, nsqd, answer, rate):
    nsqd.says("render", answer.encode(), 200)
    assert browser.get("/api/graphite?metric=rate&target=t").get_json(force=True) == {"rate": rate}


def test_a_target_that_is_not_utf_8_is_sent_as_it_is(browser, graphite, nsqd):
    nsqd.says("render", b'[{"datapoints":[[60,1]]}]', 200)
    assert browser.get("/api/graphite?metric=rate&target=%ff").status_code == 200
    assert any("target=%FF" in heard for heard in nsqd.heard)


@pytest.mark.parametrize(
    "answer", ["[]", '[{"datapoints":[]}]', '[{"datapoints":[[null,1]]}]', "{}", "", '[{"datapoints":3}]']
)
def test_no_datapoint_is_an_internal_error(graphite, nsqd, answer):
    nsqd.says("render", answer.encode(), 200)
    with pytest.raises(ApiError, match="INTERNAL_ERROR"):
        graphite.rate("t")


def test_an_answer_that_is_too_long_for_a_rate_is_not_parsed(graphite, nsqd):
    nsqd.says("render", b'[{"datapoints":[[60,1]]}' + b',{"datapoints":[[60,1]]}' * 10_000 + b"]", 200)
    with pytest.raises(ApiError, match="INTERNAL_ERROR"):
        graphite.rate("t")


def test_a_proxied_graph_is_fetched_by_nsqadmin(browser, service, graphite, nsqd):
    service.options.proxy_graphite = True
    nsqd.says("render", b"<script>", 200)
    answer = browser.get("/render?target=t")
    assert (answer.status_code, answer.text) == (200, "<script>")
    assert answer.headers["Content-Type"].startswith("text/plain"), "not as a page of ours"
    assert answer.headers["Content-Security-Policy"].startswith("sandbox; default-src 'none';")
    assert graphite.origin == ""
    service.options.proxy_graphite = False
    assert browser.get("/render").status_code == 404


@pytest.mark.parametrize("kind", ["image/svg+xml", "image/x, text/html", "application/json"])
def test_scripts_in_a_proxied_graph_do_not_run(browser, service, graphite, nsqd, kind):
    service.options.proxy_graphite = True

    def draw(handler):
        body = b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>'
        handler.send_response(200)
        handler.send_header("Content-Type", kind)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    nsqd.does("render", draw)
    answer = browser.get("/render?target=t&format=svg")
    assert answer.headers["Content-Type"] == kind
    policy = answer.headers["Content-Security-Policy"].split("; ")
    assert {"sandbox", "default-src 'none'"} <= set(policy)
    assert not any(directive.startswith(("script-src", "sandbox allow")) for directive in policy)
