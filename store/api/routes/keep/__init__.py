"""The routes that decide what is kept and under which keys, and that watch models.

retention   `/v1/retention`
erasures    `/v1/erasures`
canaries    `/v1/canaries`
rekey       `/v1/rekey`
"""
