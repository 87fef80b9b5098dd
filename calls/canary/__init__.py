"""Notice that a model answers otherwise than before, by asking it the same again and again, at a stated rate of false alarms.

evidence        how much a series of answers says for a change, or against one
series          a series of answers, and where in it something may have changed
observation     what of an answer is compared: the model, the fingerprint, and forms of its content
canary_state    what is known of a canary, and how an answer changes that
canary_verdict  whether anything changed, over many canaries
distance        how far an answer is from the reference answers
draws           which calls are asked next
"""
