"""What the web page needs beside the REST API.

page       the document and its files
facets     `/v1/facets`, `/v1/marks`
session    log in with a token, and log out
"""
