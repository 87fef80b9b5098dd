"""The commands that keep, erase and prove recordings.

proof       verify, signing-key
retention   retention
erase       erase
backup      backup, restore
"""
