from nsq_compat.client.backoff import Backoff, Pace


def test_failures_wait_twice_as_long_each_time():
    backoff = Backoff(first=2, longest=120)
    now, waits = 100.0, []
    for _ in range(8):
        assert backoff.failed(now)
        assert backoff.pace is Pace.WAITING
        waits.append(backoff.until - now)
        now = backoff.until
        assert backoff.passed(now)
    assert waits == [2, 4, 8, 16, 32, 64, 120, 120]


def test_results_of_what_came_before_do_not_count_while_it_waits():
    backoff = Backoff(first=2)
    backoff.failed(0)
    assert not backoff.failed(1)
    assert not backoff.succeeded(1)
    assert (backoff.level, backoff.until) == (1, 2)


def test_it_waits_to_the_end_and_then_tries_one():
    backoff = Backoff(first=2)
    backoff.failed(0)
    assert not backoff.passed(1.9)
    assert backoff.passed(2)
    assert backoff.pace is Pace.TESTING
    assert not backoff.passed(3)


def test_a_success_goes_down_one_level_until_all_flows_again():
    backoff = Backoff(first=2)
    backoff.failed(0)
    backoff.passed(2)
    backoff.failed(2)
    assert backoff.until == 6
    backoff.passed(6)
    assert backoff.succeeded(6)
    assert (backoff.pace, backoff.until) == (Pace.WAITING, 8)
    backoff.passed(8)
    assert backoff.succeeded(8)
    assert backoff.pace is Pace.FLOWING
    assert not backoff.succeeded(9)


def test_the_way_back_from_the_longest_wait_does_not_grow_with_more_failures():
    backoff = Backoff(first=2, longest=8)
    now = 0.0
    for _ in range(50):
        backoff.failed(now)
        now = backoff.until
        backoff.passed(now)
    successes = 0
    while backoff.pace is not Pace.FLOWING:
        backoff.succeeded(now)
        successes += 1
        now = max(now, backoff.until)
        backoff.passed(now)
    assert successes == 3


def test_it_can_be_turned_off():
    backoff = Backoff(longest=0)
    assert not backoff.failed(0)
    assert backoff.pace is Pace.FLOWING
