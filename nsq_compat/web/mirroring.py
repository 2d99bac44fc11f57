"""/mirror and /mirror/adopt: the state of mirroring, and a take-over on order. NSQ has neither."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from nsq_compat.log.data_path import reason
from nsq_compat.policy.access import OPERATE, READ
from nsq_compat.session.http_message import Request, Response
from nsq_compat.web.application import ApiError, Route, Routes, json_response, required
from nsq_compat.web.nsqd_service import NsqdService

if TYPE_CHECKING:
    from prometheus_client.core import Metric


class Mirroring:
    def __init__(self, service: NsqdService) -> None:
        self._service = service
        if is_used(service.mirroring()):
            service.metrics.collect_from(lambda: collect(service))

    def routes(self) -> Routes:
        return {"/mirror": {"GET": Route(self._show, READ)}, "/mirror/adopt": {"POST": Route(self._adopt, OPERATE)}}

    def _show(self, request: Request) -> Response:
        return json_response(self._service.mirroring())

    def _adopt(self, request: Request) -> Response:
        identity = required(request, "identity")
        try:
            topics = self._service.adopt(identity)
        except KeyError:
            raise ApiError(404, "MIRROR_NOT_FOUND") from None
        except ValueError as error:
            raise ApiError(400, f"ADOPT_FAILED: {error}") from None
        except OSError as error:
            raise ApiError(500, f"INTERNAL_ERROR: {reason(error)}") from None
        return json_response({"topics": topics})


def is_used(mirroring: Mapping[str, Any]) -> bool:
    """Whether an nsqd with this answer of /mirror has a standby, or may be one."""
    return mirroring["standby"] is not None or bool(mirroring["accepts"])


def not_mirrored(service: NsqdService) -> str:
    """Why publishes are refused for lack of a standby; "" if they are not."""
    standby = service.mirroring()["standby"]
    if standby is None or standby["state"] == "in sync" or standby["when_lost"] != "refuse":
        return ""
    return f"the standby {standby['address']} is not in sync, and messages are refused without it"


def collect(service: NsqdService) -> "Iterator[Metric]":
    from prometheus_client.core import GaugeMetricFamily

    mirroring = service.mirroring()
    standby = mirroring["standby"]
    if standby is not None:
        yield GaugeMetricFamily(
            "nsqd_mirror_in_sync", "1 while the standby has every message.", standby["state"] == "in sync"
        )
        yield GaugeMetricFamily("nsqd_mirror_changes_behind", "Changes that the standby lacks.", standby["behind"])
        yield GaugeMetricFamily("nsqd_mirror_state_seconds", "Age of that state.", standby["seconds"])
    if mirroring["accepts"]:
        # The topics of the others are served here, and no copy is left.
        primaries = [each for each in mirroring["primaries"] if each["taken_over"] is None]
        connected = sum(each["connected"] for each in primaries)
        yield GaugeMetricFamily("nsqd_mirror_primaries", "Primaries that this nsqd has copies of.", len(primaries))
        yield GaugeMetricFamily("nsqd_mirror_primaries_connected", "Those of them that are connected.", connected)
