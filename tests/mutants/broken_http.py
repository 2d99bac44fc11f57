"""An nsqd with a mutant of its HTTP API: ``python -m tests.mutants.broken_http MUTANT --options``."""

from nsq_compat.nsqd.daemon import Daemon
from nsq_compat.nsqd.main import main
from nsq_compat.queue.channel import Channel
from nsq_compat.queue.topic import Topic
from nsq_compat.web import publishing, stats
from nsq_compat.web.administration import Administration
from nsq_compat.web.application import EMPTY, ApiError
from nsq_compat.web.publishing import Publishing
from tests.mutants.mutants import Mutants

MUTANTS = Mutants(main)

# --- Publishing -------------------------------------------------------------------------------------------------------

MUTANTS.returning(
    False,
    ("a_binary_mpub_is_read_as_lines", publishing, "_is_binary", "test_http.py::test_mpub_is_binary_with"),
)
MUTANTS.returning(
    True,
    ("any_topic_name_is_valid", publishing, "is_valid_name", "test_http.py::test_refused"),
    ("nothing_can_be_left_out", stats, "_default_true", "test_stats.py::test_memory_can_be_left_out"),
)


@MUTANTS.replacing(Publishing, "begin", "test_http.py::test_refused")
def an_empty_pub_is_accepted(original, api, request, *others):
    return original(api, request, *others) if request.body else EMPTY


@MUTANTS.replacing(publishing, "split_text", "test_http.py::test_mpub_makes_a_message_of_every_line")
def an_mpub_forgets_its_last_line(original, body, max_msg_size):
    parts = list(original(body, max_msg_size))
    return [*parts[:-1], parts[-1][:-1]]


@MUTANTS.replacing(Publishing, "_defer_of", "test_deferral.py::test_messages_deferred_over_http_are_counted_separately")
def a_delay_over_http_is_forgotten(original, api, parameters):
    original(api, parameters)
    return 0.0


# --- Topics and channels ----------------------------------------------------------------------------------------------

MUTANTS.returning(
    None,
    (
        "a_paused_topic_still_delivers", Topic, "pause",
        "test_subscribe.py::test_a_paused_topic_keeps_its_messages_until_it_is_unpaused",
    ),
    (
        "a_paused_channel_stays_paused", Channel, "unpause",
        "test_subscribe.py::test_a_paused_channel_delivers_nothing_until_it_is_unpaused",
    ),
    (
        "a_deleted_channel_stays", Topic, "delete_channel",
        "test_http.py::test_a_deleted_channel_is_empty_when_created_again",
    ),
    ("the_log_level_is_forgotten", Daemon, "set_log_level", "test_http.py::test_the_log_level_can_be_set"),
)  # fmt: skip
MUTANTS.returning(
    EMPTY,
    (
        "emptying_a_topic_does_nothing", Administration, "_empty_topic",
        "test_http.py::test_emptying_a_topic_drops_messages_that_no_channel_has",
    ),
    ("a_channel_is_not_created", Administration, "_create_channel", "test_stats.py::test_one_channel_can_be_selected"),
)  # fmt: skip


@MUTANTS.replacing(Administration, "_topic_of", "test_http.py::test_an_action_that_is_refused")
def an_unknown_topic_is_a_bad_request(original, api, request):
    try:
        return original(api, request)
    except ApiError as error:
        raise ApiError(400, error.code) from error


# --- /stats -----------------------------------------------------------------------------------------------------------


@MUTANTS.replacing(stats, "_topic_json", "test_stats.py::test_topics_and_channels_are_sorted_by_name")
def stats_miss_a_channel(original, topic):
    members = original(topic)
    return members | {"channels": members["channels"][1:]}


@MUTANTS.replacing(stats, "_topic_json", "test_stats.py::test_messages_and_bytes_are_counted")
def stats_forget_bytes(original, topic):
    return original(topic) | {"message_bytes": 0}


@MUTANTS.replacing(stats, "_channel_json", "test_stats.py::test_a_channels_counts_follow_its_messages")
def depth_is_off_by_one(original, channel):
    members = original(channel)
    return members | {"depth": members["depth"] + 1}


@MUTANTS.replacing(stats, "_channel_json", "test_stats.py::test_a_channel_has_these_members_in_this_order")
def stats_lose_a_member(original, channel):
    members = original(channel)
    del members["timeout_count"]
    return members


@MUTANTS.replacing(stats, "_channel_json", "test_stats.py::test_a_client_has_these_members_in_this_order")
def stats_show_no_clients(original, channel):
    return original(channel) | {"clients": []}


@MUTANTS.replacing(stats, "snapshot", "test_stats.py::test_one_channel_can_be_selected")
def selecting_one_channel_shows_all(original, broker, now, topic, channel, *others):
    return original(broker, now, topic, "", *others)


if __name__ == "__main__":
    MUTANTS.run()
