"""Runs a job's trainers on its hosts, and starts them again when something ends that should not.

Begin at `local.py` (the command) -> `agent.py` (one process per host) -> `gang.py` (the leader, in host 0's agent). The
policies are files of their own without input or output: `watchdog.py`, `causes.py`, `budgets.py`, `goodput.py`.
"""
