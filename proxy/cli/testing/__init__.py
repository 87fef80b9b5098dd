"""The commands that test what runs did.

check   check
judge   judge
"""
