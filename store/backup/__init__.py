"""Write everything that a data directory and its database hold into one file, and restore it elsewhere.

archive       the format of the file: members with digests, read and written as a stream
files         which files of a data directory belong into it
tables        copy every table out of a database, and into an empty one
write_backup  write and check a backup
restore       restore one into an empty data directory and an empty database

The files are read before the database's snapshot is taken. An exchange that the store server moves from a spool into the database
meanwhile is then in both, and the store server stores it once.
"""
