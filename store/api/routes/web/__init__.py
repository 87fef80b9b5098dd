"""What the web page needs beside the REST API.

page       the document and its files
session    log in with a token, and log out
"""
