"""Show a run that is a file: the documents of the REST API, made from a bundle without a database. Pure.

documents     answer the addresses of the REST API that the page of a run asks
embedding     choose the documents that a page in one file holds
call_shapes   the calls of a bundle in the shapes of the REST API
run_shape     the run of a bundle in the shape of the REST API
"""
