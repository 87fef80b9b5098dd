"""Make spans of runs and calls, given as the shapes of the REST API, and encode them. Pure.

names            the attribute names of each version of the GenAI semantic conventions
ids              the ids of traces and spans, derived from those of runs and calls
conversation     read the messages of a model's request and answer, whatever the dialect
limits           cut what is said in a call to a size that a span may have
attributes       collect attributes of a span
call_facts       what both vocabularies say of a call
genai            the attributes of the GenAI semantic conventions
openinference    the attributes of OpenInference
span             what is known of a span before it is encoded
call_span        the span of a call
run_span         the span of a run
encoding         encode spans as protobuf

Ids are the same in every export of a run, so a span that is sent twice is one span.
"""
