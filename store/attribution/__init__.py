"""How an exchange that names no run finds one, and how sure that is.

certainty                 whether the run of an exchange was given, derived or guessed
processes                 keep a process's calls together, or divide them by its conversations
window, identifiers       what is remembered of a process's calls; the identifiers in a call
conversations, turns      which calls are one conversation; who said what in it
"""
