"""``nsq_rewind``: move a channel to a place of its topic's log, or create it there, on all nsqd of the topic.

By default it only reports what it would do. All nsqd are asked before the first channel is moved.
"""

from dataclasses import dataclass

from nsq_compat.cli.kinds import BOOLEAN, STRING
from nsq_compat.cli.options import option
from nsq_compat.protocol.names import is_valid_name
from nsq_compat.tools.channel_places import WHEN, Place, move, nodes_of, places
from nsq_compat.tools.client_options import ClusterOptions
from nsq_compat.tools.program import Refused, Stopping, console_script, log_plainly, refuse, say


@dataclass(kw_only=True)
class Options(ClusterOptions):
    program = "nsq_rewind"
    ignores_arguments = False
    topic: str = option(STRING, "", "topic of the channel")
    channel: str = option(STRING, "", "channel to move")
    to: str = option(STRING, "", f"where to: {WHEN}")
    create: bool = option(BOOLEAN, False, "create the channel where it is missing")
    drop_pending: bool = option(
        BOOLEAN, False, "drop what the channel has in flight, requeued or deferred, before it is moved"
    )
    execute: bool = option(BOOLEAN, False, "do it; otherwise it is only reported")


@console_script(Options)
def main(options: Options) -> None:
    topic, channel, when = options.topic, options.channel, options.to
    refuse(
        (not topic or not channel, "--topic and --channel are required"),
        (not is_valid_name(topic), "--topic is invalid"),
        (not is_valid_name(channel), "--channel is invalid"),
        (not when, "--to is required"),
        *options.address_rules(),
    )
    log_plainly()
    stopping = Stopping()
    cluster = options.cluster()
    drops = {"drop_pending": "true"} if options.drop_pending else {}

    def find() -> list[Place]:
        nodes = nodes_of(cluster, topic, when)
        if not nodes:
            raise Refused(f"no nsqd has the topic {topic}")
        return places(cluster, nodes, topic, channel, when, drops)

    if (found := options.reached(find, stopping)) is None:
        return
    if (missing := [str(place.node) for place in found if place.channel_offset is None]) and not options.create:
        raise Refused(f"no channel {channel} of {topic} on nsqd {', '.join(missing)} (--create creates it)")
    total = 0
    for place in move(cluster, found, topic, channel, when, drops) if options.execute else found:
        total += place.depth
        print(f"{place.node}: {_describe(place, options)}", flush=True)
    if len(found) > 1:
        print(f"all: {total} messages")
    if not options.execute:
        say("nothing was changed; --execute does it")


def _describe(place: Place, options: Options) -> str:
    name = f"channel {options.channel} of {options.topic}"
    will = "will" if options.execute else "would"
    comes = f"{place.depth} messages {will} come"
    if place.channel_offset is None:
        done = "was created" if options.execute else "would be created"
        return f"{name} {done} at {place.offset}: {comes}"
    moved = "went" if options.execute else "would go"
    return f"{name} {moved} from {place.channel_offset} to {place.offset}: {comes}, instead of {place.channel_depth}"
