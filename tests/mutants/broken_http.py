"""An nsqd with a mutant of its HTTP API: ``python -m tests.mutants.broken_http MUTANT --options``."""

from collections.abc import Mapping
from typing import Any

from nsq_compat.nsqd.daemon import Daemon
from nsq_compat.nsqd.main import main
from nsq_compat.queue.channel import Channel
from nsq_compat.queue.topic import Topic
from nsq_compat.web import publishing, stats
from nsq_compat.web.administration import Administration
from nsq_compat.web.application import EMPTY, ApiError
from nsq_compat.web.publishing import Publishing
from nsq_compat.web.stats import Stats
from tests.mutants.breaking import Function, mutant_of, run_mutant

Members = dict[str, Any]

# --- Publishing -------------------------------------------------------------------------------------------------------


@mutant_of(Publishing, "begin")
def an_empty_pub_is_accepted(original: Function, api: Publishing, request: Any, *others: object) -> object:
    return original(api, request, *others) if request.body else EMPTY


@mutant_of(publishing, "split_text")
def an_mpub_forgets_its_last_line(original: Function, body: bytes, max_msg_size: int) -> object:
    return original(body, max_msg_size)[:-1]


@mutant_of(publishing, "_is_binary")
def a_binary_mpub_is_read_as_lines(original: Function, parameters: Mapping[str, str]) -> bool:
    return False


@mutant_of(publishing, "is_valid_name")
def any_topic_name_is_valid(original: Function, name: str) -> bool:
    return True


@mutant_of(Publishing, "_defer_of")
def a_delay_over_http_is_forgotten(original: Function, api: Publishing, parameters: Mapping[str, str]) -> float:
    original(api, parameters)
    return 0.0


# --- Topics and channels ----------------------------------------------------------------------------------------------


@mutant_of(Administration, "_topic_of")
def an_unknown_topic_is_a_bad_request(original: Function, api: Administration, request: object) -> object:
    try:
        return original(api, request)
    except ApiError as error:
        raise ApiError(400, error.code) from error


@mutant_of(Topic, "pause")
def a_paused_topic_still_delivers(original: Function, topic: Topic) -> None:
    pass


@mutant_of(Channel, "unpause")
def a_paused_channel_stays_paused(original: Function, channel: Channel) -> None:
    pass


@mutant_of(Administration, "_empty_topic")
def emptying_a_topic_does_nothing(original: Function, api: Administration, request: object) -> object:
    return EMPTY


@mutant_of(Topic, "delete_channel")
def a_deleted_channel_stays(original: Function, topic: Topic, name: str) -> None:
    pass


@mutant_of(Administration, "_create_channel")
def a_channel_is_not_created(original: Function, api: Administration, request: object) -> object:
    return EMPTY


@mutant_of(Daemon, "set_log_level")
def the_log_level_is_forgotten(original: Function, daemon: Daemon, text: str) -> None:
    pass


# --- /stats -----------------------------------------------------------------------------------------------------------


@mutant_of(stats, "_topic_json")
def stats_miss_a_channel(original: Function, topic: object) -> Members:
    members: Members = original(topic)
    return members | {"channels": members["channels"][1:]}


@mutant_of(stats, "_topic_json")
def stats_forget_bytes(original: Function, topic: object) -> Members:
    members: Members = original(topic)
    return members | {"message_bytes": 0}


@mutant_of(stats, "_channel_json")
def depth_is_off_by_one(original: Function, channel: object) -> Members:
    members: Members = original(channel)
    return members | {"depth": members["depth"] + 1}


@mutant_of(stats, "_channel_json")
def stats_lose_a_member(original: Function, channel: object) -> Members:
    members: Members = original(channel)
    del members["timeout_count"]
    return members


@mutant_of(stats, "_channel_json")
def stats_show_no_clients(original: Function, channel: object) -> Members:
    members: Members = original(channel)
    return members | {"clients": []}


@mutant_of(Stats, "_report")
def selecting_one_channel_shows_all(original: Function, api: Stats, topic: str, channel: str, **which: bool) -> object:
    return original(api, topic, "", **which)


@mutant_of(stats, "_default_true")
def nothing_can_be_left_out(original: Function, parameters: Mapping[str, str], key: str) -> bool:
    return True


if __name__ == "__main__":
    run_mutant(main)
