"""What secrets look like.

secret_rule       the form of a rule
credentials       the table of all rules: tokens, private keys, webhooks
token_families    the tokens of known services
secret_names      names that mean a secret
named_values      values that their name makes secret
listed_values     several secret values under one name
option_values     command-line options, URL parameters and cookies
packed_values     named values in MessagePack and CBOR
personal_data     card numbers, bank accounts, e-mail addresses, telephone numbers
personal_names    names of people that the setting lists
value_syntax      what stands between a name and its value
patterns          regular expressions with known beginnings
expression        RE2 expressions for bytes
"""
