"""HTTP and WebSockets, where mitmproxy is too lenient or too slow.

http1                 HTTP/1 connections
http2                 HTTP/2 connections, with flow control
body_lengths          check HTTP/2 bodies against their Content-Length
flood                 detect floods of empty HTTP/2 frames
header_cache_patch    replace slow functions of mitmproxy's headers
websocket             act as the server of a recorded WebSocket
websocket_frames      read the frames of WebSockets
"""
