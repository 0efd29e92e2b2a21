"""The leader of a run: attempts, causes, budgets, the watchdog, the status.

Host 0 is the leader by definition: there is no election. `protocol/leader_address.py` says where it is; `claim.py` and
`protocol/takeover.py` keep it the only one.
"""
