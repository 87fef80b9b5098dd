"""Give a recorded answer in another form than it was recorded in.

adapt_answer    adapt an answer to the request that it answers
reframe         from whole to streamed and back
openai          the streams of OpenAI's other APIs
cloud           the streams of Gemini, Bedrock, Ollama and Cohere
id_rewrite      replace ids that the client makes
readdress       replace the ids of JSON-RPC
"""
