"""The routes that remove what was recorded, and that watch models.

retention   `/v1/retention`
erasures    `/v1/erasures`
canaries    `/v1/canaries`
"""
