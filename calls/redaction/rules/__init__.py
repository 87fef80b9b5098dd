"""The rules that recognise secrets.

secret_rule       the form of a rule
credentials       the table of all rules: tokens, private keys, webhooks
token_families    the tokens of known services
secret_names      names whose values are secret
named_values      values that are secret because of their name
listed_values     several secret values under one name
command_values    what a command takes as a password: short options, settings, input
option_values     command-line options, URL parameters and cookies
packed_values     named values in MessagePack and CBOR
personal_data     card numbers, bank accounts, e-mail addresses, telephone numbers
personal_names    names of people that the settings list
value_syntax      the syntax between a name and its value
patterns          regular expressions with known beginnings
expression        RE2 expressions for bytes
"""
