"""The keeper's REST interface (`/v1`): thin routes over the store's queries, and problems in RFC 9457.

`app` puts it together; `guard` says who may ask; each other module holds the routes of one noun.
"""
