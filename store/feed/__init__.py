"""The feed: what was stored, in the order in which it was committed, for everything that follows the record.

entries    what an entry says: a call, gap or replay report was stored; a run began, ended, changed or was deleted
feed       append entries in the transaction that stores what they say; read them after a position; delete old ones
events     entries as events for clients, and the filters of events
idle_runs  end runs that nobody ends
model_watch  notice that another model answers under a name
consumer   run a part that processes every entry once: its position is stored in the transaction that stores its result
signal     tell waiting readers in this process that something was committed
feed_watch  look for what other processes committed, once for all readers
stored_versions  tell workers which runs have changed, if others write to the database, too

An entry is written in the transaction of what it describes, so the two are stored together or not at all. Positions are
transaction ids: a reader sees an entry only when every transaction with a smaller id has ended, so nothing is inserted before
its position. Entries are deleted after a week; a consumer that lags further behind, or has no position yet, rebuilds its result.
"""
