"""From the spool to the tables.

ingester               drain all spools of a data directory
drain                  drain one spool
open_exchange_files    keep long exchanges on disk until they end
batch_writer           write exchanges, calls, gaps and reports in batches
insert_rows            the rows that are inserted
derive_call            derive the call of an exchange
dedup_cache            what a run has stored already
partitions             daily partitions of the large tables
"""
