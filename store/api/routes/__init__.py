"""The routes, one module for each resource.

runs           `/v1/runs`
calls          `/v1/calls`
exchanges      `/v1/exchanges`
compare        `/v1/runs/{a}/diff/{b}`, `/v1/drift`
proof          `/v1/runs/{run}/verify`, `/v1/verify`, `/v1/runs/{run}/envelope`, `/v1/checkpoint`
stats          `/v1/stats`
timelines      `/v1/runs/{run}/timeline`, `/v1/runs/{run}/conversation`
search         `/v1/search`
events         `/v1/events`
audit          `/v1/audit`
replays        `/v1/replays`
forks          `/v1/runs/{run}/forks`
imports        `/v1/import`
questions      `/v1/waiting`, `/v1/runs/{run}/questions`, `/v1/runs/{run}/answers`
keep           `/v1/retention`, `/v1/erasures`, `/v1/canaries`, `/v1/rekey`
health         `/healthz`, `/readyz`, `/metrics`, `/ca.pem`
manual         the description of the API
web            the web page, `/v1/session`
"""
