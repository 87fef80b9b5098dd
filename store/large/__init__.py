"""Exchanges that are too large for the store server's own memory.

weight     how much memory an exchange takes
memory     limit the memory of a process
helper     start helper processes
worker     the helper process
jobs       the messages between the server and its helpers
queue      store large exchanges one after another
storing    store one large exchange
summary    what is stored of a large call for lists
"""
