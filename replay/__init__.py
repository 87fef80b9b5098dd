"""Answering from a recording, or saying exactly why not. Nothing here opens a connection.

- recording: a bundle made ready: every exchange with its key and the digest of its raw request (`recording`, `script`).
- replay, session: one position in a recording and an account of what happened (`session`, `report`).
- miss: a request without a recorded answer, the nearest recorded call, and where the two part (`miss`, `nearest`,
  `divergence`, `explain`).
- drift: how a request that was answered differs from the recorded one outside its key (`drift`).
- answer: what the wire engine is told to send, piece by piece and at which times (`answer`, `playback`, `pacing`,
  `reframe`, `fit`).
- what if: answers other than the recorded ones (`edits`, `places`, `faults`, `editor`), and what becomes of requests that
  leave the record (`fork`); both by `hooks`, as somebody wished for (`wishes`).

`replays` is the door's view of all that: which recording answers a request, and the answer.
"""
