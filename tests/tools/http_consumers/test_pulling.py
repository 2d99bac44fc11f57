"""The values of `wait`; everything else is tested with the program (test_nsq_pull)."""

import pytest

from nsq_compat.tools.http_consumers.pulling import MAX_WAIT_SECONDS, read_wait
from nsq_compat.web.application import ApiError


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0", 0), ("2.5", 2.5), ("2500ms", 2.5), ("1m", 60), ("1e9", MAX_WAIT_SECONDS), ("inf", MAX_WAIT_SECONDS)],
)
def test_a_wait_is_in_seconds_or_has_a_unit(text, seconds):
    assert read_wait(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "-1", "-1s", "nan", "1 s", "٣s"])
def test_other_values_are_refused(text):
    with pytest.raises(ApiError):
        read_wait(text)
