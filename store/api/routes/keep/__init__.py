"""The routes that remove what was recorded.

retention   `/v1/retention`
erasures    `/v1/erasures`
"""
