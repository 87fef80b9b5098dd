"""The APIs of OpenAI, and of the many services that copy them.

chat                   Chat Completions
completions            Completions, the older API
embeddings             Embeddings
responses              Responses
responses_websocket    Responses over a WebSocket
realtime               Realtime over a WebSocket
assistants             Assistants (beta)
agents                 Agents (beta)
rest                   images, speech, videos, moderation, files, vector stores
"""
