"""Prints the spans that it is sent by OTLP over HTTP, one JSON object a line.

Runs in the environment that has vLLM, with OpenTelemetry's own messages: `python trace_collector.py PORT`.
"""

from __future__ import annotations

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Handler(BaseHTTPRequestHandler):
    """Takes spans."""

    def do_POST(self) -> None:
        """Print the spans of a request."""
        request = ExportTraceServiceRequest()
        request.ParseFromString(self.rfile.read(int(self.headers["Content-Length"])))
        for resource in request.resource_spans:
            service = {a.key: a.value.string_value for a in resource.resource.attributes}.get("service.name")
            for span in (s for scope in resource.scope_spans for s in scope.spans):
                values = ((a.key, getattr(a.value, a.value.WhichOneof("value"))) for a in span.attributes)
                line = {
                    "service": service,
                    "name": span.name,
                    "trace": span.trace_id.hex(),
                    "parent": span.parent_span_id.hex(),
                }
                sys.stdout.write(
                    json.dumps(
                        {**line, "attributes": {k: v for k, v in values if not isinstance(v, bytes)}}, default=str
                    )
                    + "\n"
                )
        sys.stdout.flush()
        self.send_response(200)
        self.send_header("Content-Type", "application/x-protobuf")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing of requests."""


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
