from nsq_compat.queue.bounds import LOG_SECONDS, Tally


def test_the_first_is_spoken_of_at_once_and_the_rest_together():
    tally = Tally()
    assert tally.add(3, 100.0) == 3
    assert tally.add(1, 101.0) == 0
    assert tally.add(2, 100.0 + LOG_SECONDS) == 3
    assert tally.add(5, 100.0 + 1.5 * LOG_SECONDS) == 0
