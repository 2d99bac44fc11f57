from nsq_compat.cluster.latency import Latency, merged, read_latency


def measured(count, **values):
    pairs = [{"quantile": float(name.replace("p", "0.")), "value": value} for name, value in values.items()]
    return read_latency({"count": count, "percentiles": pairs})


def only(latency):
    (percentile,) = latency.percentiles
    return percentile


def test_one_node_is_its_own_average_and_extremes():
    percentile = only(measured(7, p99=5.0))
    assert (percentile.quantile, percentile.average, percentile.min, percentile.max, percentile.count) == (
        *(0.99, 5.0, 5.0, 5.0, 7),
    )


def test_over_nodes_the_average_is_weighted_by_messages():
    percentile = only(merged([measured(1, p99=10.0), measured(3, p99=30.0)]))
    assert (percentile.average, percentile.min, percentile.max, percentile.count) == (25.0, 10.0, 30.0, 4)


def test_a_node_without_messages_does_not_count_as_the_fastest():
    percentile = only(merged([measured(0, p99=0.0), measured(2, p99=30.0)]))
    assert (percentile.average, percentile.min) == (30.0, 30.0)


def test_nothing_measured_anywhere_is_zero():
    percentile = only(merged([measured(0, p99=0.0)]))
    assert (percentile.average, percentile.min, percentile.max, percentile.count) == (0.0, 0.0, 0.0, 0)


def test_quantiles_keep_the_order_nsqd_gave_them():
    latency = merged([measured(1, p99=1.0, p95=1.0), measured(1, p50=1.0, p99=1.0)])
    assert [percentile.quantile for percentile in latency.percentiles or ()] == [0.99, 0.95, 0.5]


def test_not_asked_for_is_none():
    assert read_latency({"count": 0, "percentiles": None}) == Latency()
    assert read_latency(None) == Latency()
    assert merged([Latency(), Latency(3)]) == Latency(3)
