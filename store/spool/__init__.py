"""The queue on disk between a worker and the store server: written by one process, read by another.

What is lost if a process or the host fails:

- the writing process (kill -9): records appended and not yet written, at most the last 20 ms, and only records that
  nothing waited for; and what `call_soon` has scheduled, at most the last 0.2 s of streams that go on;
- the host: records written and not yet synced, at most one more group of 20 ms; with `durability="fsync"`,
  `wait_until_durable` waits for the sync, so no record that it returned for is lost;
- the reading process: nothing. It commits to the database, then moves its cursor (sync, rename, sync of the directory), and
  only then deletes the segments before it; after a crash it reads some records again.

    DIR/lock            locked (flock) by the writer for as long as it runs
    DIR/00000001.seg    segments: see `segment`
    DIR/progress        how many records the writer has written: see `progress`
    DIR/cursor          the position that the reader has committed
    DIR/damaged/        copies of bytes that could not be read
    DIR/news            how many changes of replay reports are not yet written: see store/report_sequence.py

writer          append records in memory and write them to disk in groups
scheduled_work  do a moment later, many at a time, what records of streams need
syncer          sync segments and their directory
output          write frames to the current segment
segment         the format of a segment
progress        how many records were written
waiters         futures that wait for records to be written or synced
reader          read records and skip damage
cursor          the position that the reader has committed
place           the directory of a spool
disk            the system calls of a spool
errors          why a record cannot be written
"""

from store.spool.errors import SpoolBroken, SpoolError, SpoolFull, SpoolTaken
from store.spool.reader import Damage, Reader, SpoolStats
from store.spool.segment import Position
from store.spool.writer import Spool

__all__ = [
    "Damage",
    "Position",
    "Reader",
    "Spool",
    "SpoolBroken",
    "SpoolError",
    "SpoolFull",
    "SpoolStats",
    "SpoolTaken",
]
