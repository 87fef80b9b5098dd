"""The APIs of other services.

ai_gateway               Vercel's AI gateway
cohere_v1                Cohere's first API
cohere_v2                Cohere's second API
dashscope                Alibaba's DashScope
mistral_conversations    Mistral's Conversations
ollama                   Ollama
replicate                Replicate
rerank                   rerankers
single_service           APIs that one service has: speech, transcripts, pictures
text_generation          Hugging Face's text generation, Aleph Alpha
vector_databases         vector databases
watsonx                  IBM watsonx
web_search               web search and page fetching
"""
