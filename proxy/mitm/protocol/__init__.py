"""HTTP and WebSockets, where mitmproxy is too lenient or too slow.

http1                 HTTP/1
http2                 HTTP/2
body_lengths          the content-length of bodies in HTTP/2
flood                 floods of empty frames
header_cache_patch    cheaper headers
websocket             the messages of WebSockets
websocket_frames      the frames of WebSockets
"""
