"""Read the spools and write exchanges, calls, gaps and reports to the tables.

ingester               drain all spools of a data directory
drain                  drain one spool
open_exchange_files    park long or large open exchanges in files until they end
batch_writer           write exchanges, calls, gaps and reports in batches
project_writers        write a batch into the projects of its exchanges
insert_rows            make the rows and the statements that insert them
array_text             hand the rows of a batch to Postgres by column
dedup_cache            remember what a run has stored, to write only new content
partitions             create daily partitions of the large tables
"""
