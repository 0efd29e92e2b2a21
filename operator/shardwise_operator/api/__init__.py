"""The API as Kubernetes sees it, generated from the types of `shardwise.job`: CRDs and the admission policies.

`generate.py` writes what the chart holds; `catalog.py` is used by the running operator too.
"""
