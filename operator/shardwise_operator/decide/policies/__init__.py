"""The policies: each decides one thing, purely, from what was observed and the time.

Two lists have them in order. Of `shardwise_operator.decide.decide` the first that returns a plan decides the pass:
a job that ends, waits, stops or goes elsewhere. If none does, all of `shardwise_operator.decide.maintain` apply, in the
order given there.
"""
