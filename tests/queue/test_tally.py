from nsq_compat.queue.tally import SECONDS, Tally


def test_the_first_is_spoken_of_at_once_and_the_rest_together():
    tally = Tally()
    assert tally.add(3, 100.0) == 3
    assert tally.add(1, 101.0) == 0
    assert tally.add(2, 100.0 + SECONDS) == 3
    assert tally.add(5, 100.0 + 1.5 * SECONDS) == 0
