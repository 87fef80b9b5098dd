"""Find changes of the model behind a name in ordinary runs. docs/compare.md explains what is reported.

model_changes    answer the question which models changed, and how often requests were repeated
variants         the models that answered to a name, and repeated requests; from the calls themselves
model_days       keep both for each day that is over
stored_days      read both from these days, and the other days from the calls
latency_changes  find models that became slower or faster, from the statistics of days
"""
