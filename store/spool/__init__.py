"""The queue on disk between a worker and the store server: written by one process, read by another.

What is lost if a process or the host fails:

- the writing process (kill -9): what was appended and not yet written, at most 20 ms of pieces that nobody waited for;
- the host: what was written and not yet synced, at most one more 20 ms group; with `durability="fsync"`, `reached` waits
  for the sync, and nothing that it was asked about is lost;
- the reading process: nothing. It commits, then moves its cursor (sync, rename, sync of the directory), and only then
  deletes what is behind it; after a crash it reads some again.

    DIR/lock            held (flock) by the writer for as long as it lives
    DIR/00000001.seg    segments: see `segment`
    DIR/cursor          how far the reader has come
    DIR/damaged/        bytes that could not be read, as they were found
    DIR/news            which reports of replays are not yet written: see store/report_sequence.py

writer      append records, and write them on a thread
syncer      sync files on another thread
output      the segment that is being written
segment     the format of a segment
progress    how many records were written
waiters     those who wait for their records
reader      read records, and find a way around damage
cursor      how far the reader has come
place       the directory of a spool
disk        the system calls of a spool
errors      why a record cannot be kept
"""

from store.spool.errors import SpoolBroken, SpoolError, SpoolFull, SpoolTaken
from store.spool.reader import Damage, Reader, Stats
from store.spool.segment import Position
from store.spool.writer import Spool

__all__ = ["Damage", "Position", "Reader", "Spool", "SpoolBroken", "SpoolError", "SpoolFull", "SpoolTaken", "Stats"]
