"""Say when a run did what, and what was said in it: the documents from which the page draws a run.

facts              what is known of a step, wherever it is read from
lanes              give steps that overlap lanes of their own
timeline           make the timeline of a run
prompt_history     find what is new in each prompt
nameless_tools     match the results of tool calls that have no ids
conversation       make the conversation of a run
short_call         shorten a call to what is looked at first
texts              shorten texts to a budget
loading            load the facts of a run from the database
from_exchanges     make the facts from the exchanges of a bundle

Only `loading` reads the database. All others are pure, so that a run in a file has the same documents.
"""
