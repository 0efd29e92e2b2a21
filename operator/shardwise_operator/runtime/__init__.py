"""A small controller runtime: requests to the API server, watches, cache, work queue and leader election.

    errors <- kinds <- connection <- transport <- reflector <- manager -> queue -> workers -> Controller.reconcile
                                     transport <- elector   <- manager
                                     store <- cache <- manager

`main` builds the parts, `manager` runs them, the controller knows what to watch and what to do. Nothing in here knows
what a TrainingJob is. Why it is our own: docs/decisions/0011-own-controller-runtime.md.
"""
