"""Export runs to OpenTelemetry: each run is a trace, each call a span, sent by OTLP over HTTP as protobuf.

spans        make spans of the shapes of the REST API and encode them. Pure
run_export   read a run and encode its spans, page by page
target       where to send spans, and what they say
sender       send encoded spans to one target
exporter     follow the feed and export the runs that ended
metrics      how the exports are doing, for `/metrics` and `/readyz`
"""
