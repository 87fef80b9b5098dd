"""Handle exchanges that are too large for the store server's own memory, in helper processes.

weight     estimate the memory that an exchange takes
memory     limit the memory of a process
helper     start helper processes and give them jobs
worker     the helper process
jobs       the messages between the server and its helpers
queue      store large exchanges one after another
storing    store one large exchange
summary    the summary of a large call, for lists
"""
