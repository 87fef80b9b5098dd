"""Read effects as they are shown: what the programs of a run got from elsewhere than the network (docs/effects.md).

observed           the effects of a batch
shapes             show effects, and groups of them between calls, as the REST API does
first_difference   find the first effect that differs between two runs
comparison         name it in the document of a comparison
loading            load pages of effects, and their sums between calls

Only `loading` reads the database.
"""
