"""The zstd dictionary for short bytes, made of text that is common in the traffic of agents.

Most stored bytes are short, and most of a short message is text that every message has. The dictionary must never change,
because stored bytes can only be read with the same dictionary; a better one needs a new form in `blobs`.
"""

# From the documentation of the APIs and the headers that their SDKs send. The most common text is last, where zstd refers to it
# with the smallest offsets.
BODIES = (
    '{"type":"error","error":{"type":"invalid_request_error","message":"","param":null,"code":null}}'
    '{"candidates":[{"content":{"parts":[{"text":"","functionCall":{"name":"","args":{}}}],"role":"model"},'
    '"finishReason":"STOP"}],"usageMetadata":{"promptTokenCount":,"candidatesTokenCount":,"totalTokenCount":},'
    '"modelVersion":"gemini-"}'
    'event: message_start\ndata: {"type":"message_start","message":{"model":"claude-","id":"msg_01","type":"message",'
    '"role":"assistant","content":[],"stop_reason":null,"stop_sequence":null,"usage":{"input_tokens":,'
    '"cache_creation_input_tokens":0,"cache_read_input_tokens":0,"output_tokens":1,"service_tier":"standard"}}}\n\n'
    'event: content_block_start\ndata: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}\n\n'
    'event: ping\ndata: {"type": "ping"}\n\n'
    'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":""}}\n\n'
    'event: content_block_stop\ndata: {"type":"content_block_stop","index":0}\n\n'
    'event: message_delta\ndata: {"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},'
    '"usage":{"output_tokens":}}\n\nevent: message_stop\ndata: {"type":"message_stop"}\n\n'
    '{"type":"tool_use","id":"toolu_01","name":"","input":{}}{"type":"tool_result","tool_use_id":"toolu_01",'
    '"content":[{"type":"text","text":""}],"is_error":false}'
    'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","sequence_number":,"item_id":"msg_",'
    '"output_index":0,"content_index":0,"delta":"","logprobs":[]}\n\n'
    '{"object":"list","data":[{"object":"embedding","index":0,"embedding":[]}],"model":"text-embedding-3-small"}'
    '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"","arguments":{}}}'
    '{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":""}],"isError":false}}'
    'data: {"id":"chatcmpl-","object":"chat.completion.chunk","created":17,"model":"gpt-4o-mini-2024-07-18",'
    '"service_tier":"default","system_fingerprint":"fp_","choices":[{"index":0,"delta":{"role":"assistant",'
    '"content":"","refusal":null},"logprobs":null,"finish_reason":null}],"usage":null,"obfuscation":""}\n\ndata: [DONE]\n\n'
    '{"model": "gpt-4o", "max_tokens": 1024, "temperature": 0, "stream": true, "stream_options": {"include_usage": true}, '
    '"tools": [{"type": "function", "function": {"name": "", "description": "", "parameters": {"type": "object", '
    '"properties": {"": {"type": "string", "description": ""}}, "required": [""], "additionalProperties": false}}}], '
    '"tool_choice": "auto", "messages": [{"role": "system", "content": "You are a helpful assistant."}, '
    '{"role": "user", "content": [{"type": "text", "text": ""}]}, {"role": "assistant", "content": null, "tool_calls": '
    '[{"id": "call_", "type": "function", "function": {"name": "", "arguments": "{\\""}}]}, '
    '{"role": "tool", "tool_call_id": "call_", "content": ""}], "model": "gpt-4o"}'
    '{"id":"chatcmpl-","object":"chat.completion","created":17,"model":"gpt-4o-2024-08-06","choices":[{"index":0,'
    '"message":{"role":"assistant","content":"","refusal":null,"annotations":[]},"logprobs":null,"finish_reason":"stop"}],'
    '"usage":{"prompt_tokens":,"completion_tokens":,"total_tokens":,"prompt_tokens_details":{"cached_tokens":0,'
    '"audio_tokens":0},"completion_tokens_details":{"reasoning_tokens":0,"audio_tokens":0,"accepted_prediction_tokens":0,'
    '"rejected_prediction_tokens":0}},"service_tier":"default","system_fingerprint":"fp_"}'
)

HEADERS = (
    "request-id req_01 anthropic-organization-id anthropic-ratelimit-requests-limit anthropic-ratelimit-tokens-remaining "
    "anthropic-ratelimit-input-tokens-reset via 1.1 google vary Origin, X-Origin, Referer server ESF x-frame-options "
    "SAMEORIGIN x-xss-protection 0 server-timing gfet4t7; dur= x-amzn-requestid transfer-encoding retry-after "
    "set-cookie __cf_bm=; path=/; expires= ; domain=.api.openai.com; HttpOnly; Secure; SameSite=None _cfuvid= etag "
    "last-modified cache-control no-cache, no-store, max-age=0, must-revalidate access-control-allow-origin * "
    "content-security-policy default-src 'none' x-envoy-upstream-service-time x-openai-proxy-wasm v0.1 openai-project "
    "x-ratelimit-reset-requests 6ms x-ratelimit-reset-tokens 0s application/x-www-form-urlencoded text/plain; "
    "charset=utf-8 text/html multipart/form-data; boundary= python-requests/2. python-httpx/0.28.1 "
    "Python/3.12 aiohttp/3. node axios/1. undici curl/8. "
    "\xa8HTTP/2.0\xa4host\xa6accept\xa3*/*\xafaccept-encoding\xadgzip, deflate\xaauser-agent\xb2Anthropic/Python 0."
    "\xb1anthropic-version\xaa2023-06-01\xa9x-api-key\xaccontent-typecontent-length\xaacontent-encoding\xa4gzip"
    "\xb1transfer-encoding\xa7chunked\xa4Host\xaeapi.openai.com\xa6Accept\xb0application/json\xacContent-Type"
    "\xb0application/jsonapplication/json; charset=utf-8text/event-stream; charset=utf-8\xaaUser-AgentOpenAI/Python 1."
    "AsyncOpenAI/Python OpenAI/JS \xadAuthorization\xd9Bearer PLAYHEAD_\xb0X-Stainless-Lang\xa6python"
    "\xbbX-Stainless-Package-Version\xaeX-Stainless-OS\xa5Linux\xb0X-Stainless-Arch\xa3x64\xb3X-Stainless-Runtime"
    "\xa7CPython\xbbX-Stainless-Runtime-Version\xa63.12.0\xb1X-Stainless-Async\xa5false\xb7x-stainless-retry-count\xa10"
    "\xb8x-stainless-read-timeout\xa3600\xafAccept-Encoding\xb7gzip, deflate, br, zstd\xaaConnection\xaakeep-alive"
    "\xaeContent-Length\xb2X-Forwarded-For\xa4Date\xd9\x1dMon, Tue, Wed, Thu, Fri, Sat, Sun, 01 Jan 2026 00:00:00 GMT"
    "\xd9access-control-expose-headers\xacX-Request-ID\xb3openai-organization\xb4openai-processing-ms\xaeopenai-version"
    "\xaa2020-10-01\xbax-ratelimit-limit-requests\xa510000\xb8x-ratelimit-limit-tokens\xa830000000"
    "\xbdx-ratelimit-remaining-requests\xa49999\xbbx-ratelimit-remaining-tokens\xa829999\xacx-request-id\xd9$req_"
    "\xb9strict-transport-security\xd9,max-age=31536000; includeSubDomains; preload\xafcf-cache-status\xa7DYNAMIC"
    '\xb6X-Content-Type-Options\xa7nosniff\xa6Server\xaacloudflare\xa6CF-RAY\xb0-FRA\xa7alt-svc\xb3h3=":443"; ma=86400'
    "\xb0x-playhead-run\xabcredentials\x92\xa2OK\x90\xa8HTTP/1.1"
)

FIRST = BODIES.encode() + HEADERS.encode("latin-1")
"""The first dictionary, of 2026-11."""
