"""The APIs of Google.

gemini                 generateContent, on Gemini and on Vertex
gemini_code            generateContent as Code Assist wraps it
gemini_interactions    Interactions
gemini_live            the Live API over a WebSocket
discovery              Discovery Engine
"""
