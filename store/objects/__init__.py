"""Keep large bodies in object storage: S3, Google Cloud Storage, Azure, or a folder.

target          where objects are, and from which size
bucket          put, get, list and delete objects, and translate errors
object_keys     the keys of projects
object_format   compress and encrypt what an object has
registry        the tables of objects and of what uses them
body_objects    write objects before the rows that name them, and load them
collection      delete objects that nothing names

An object is named by a keyed digest of its bytes: within a project equal bytes are one object, and the name reveals nothing. Each is
encrypted with the key of its project, so that deleting the key erases them all.

A row of the table `objects` exists before its object, and is locked both by the transaction that stores a row which names the object
(against deletion) and by whoever deletes the object. What finds no row, or another generation of it, does not name the object. So an
object that a row names is never deleted, whichever store servers write and delete at the same time. What a killed process leaves is an
object that nothing names, which a later pass deletes.
"""
