"""A tracer provider that keeps the spans that have ended."""

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, Sampler

from tests.client.waiting import wait_until


class Spans:
    def __init__(self, sampler: Sampler = ALWAYS_ON) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(sampler=sampler)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def __call__(self, kind: str = "") -> list[ReadableSpan]:
        """Those that have ended, with names that begin so, in the order of their ends."""
        return [span for span in self._exporter.get_finished_spans() if span.name.startswith(kind)]

    def wait_for(self, kind: str, count: int = 1) -> list[ReadableSpan]:
        wait_until(lambda: len(self(kind)) >= count)
        found = self(kind)
        assert len(found) == count
        return found


def context_of(span: ReadableSpan) -> tuple[int, int]:
    """The ids of its trace and of itself."""
    assert span.context is not None
    return span.context.trace_id, span.context.span_id


def parent_of(span: ReadableSpan) -> tuple[int, int] | None:
    return None if span.parent is None else (span.parent.trace_id, span.parent.span_id)


def links_of(span: ReadableSpan) -> list[tuple[int, int]]:
    return [(link.context.trace_id, link.context.span_id) for link in span.links]


def traceparent(span: ReadableSpan) -> str:
    trace_id, span_id = context_of(span)
    assert span.context is not None
    return f"00-{trace_id:032x}-{span_id:016x}-{span.context.trace_flags:02x}"
