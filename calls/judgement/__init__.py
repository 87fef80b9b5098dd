"""Have a model judge what a run did, by the criteria of a rubric. Pure: requests and answers are values.

rubric       read the criteria of a rubric (TOML)
transcript   a run as lines of JSON that a judge reads
prompt       the requests to the judge, in which what is judged is fenced
verdict      read the judge's answers, and combine votes
agreement    how far a judge agrees with human labels
"""
