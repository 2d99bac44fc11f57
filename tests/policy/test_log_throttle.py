from nsq_compat.policy.log_throttle import LOG_SECONDS, LogThrottle


def test_the_first_event_is_logged_at_once_and_the_rest_together():
    throttle = LogThrottle()
    assert throttle.add(3, 100.0) == 3
    assert throttle.add(1, 101.0) == 0
    assert throttle.add(2, 100.0 + LOG_SECONDS) == 3
    assert throttle.add(5, 100.0 + 1.5 * LOG_SECONDS) == 0
