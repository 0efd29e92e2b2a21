"""A small controller runtime: the API server spoken to, watched, cached, queued by key, and led by one process.

    errors <- kinds <- connection <- transport <- reflector <- manager -> queue -> workers -> Controller.reconcile
                                     transport <- elector   <- manager
                                     store <- cache <- manager

`main` builds the parts, `manager` runs them, the controller brings what to watch and what to do. Nothing here knows
what a TrainingJob is. Why it is our own: docs/decisions/0011-own-controller-runtime.md.
"""
