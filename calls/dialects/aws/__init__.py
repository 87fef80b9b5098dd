"""The APIs of AWS.

bedrock_converse       Converse and ConverseStream
bedrock_invoke         InvokeModel
bedrock_text_models    the bodies of the models behind InvokeModel
bedrock_agent          agents
bedrock_operations     retrieval, guardrails, queries, prompt optimization
sagemaker              endpoints
"""
