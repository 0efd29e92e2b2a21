"""Run a job's trainers on its hosts, and start them again when something ends that should not.

Begin at `local.py`, the command, or `pod.py`, the first process of a pod. Both lead to `agent_main.py`, one agent for
each host, and from there to `leader/leader.py` in host 0's agent. The rooms, each importing only those after it:
`leader` decides, `agent` serves one host, `ray` connects the hosts, `system` is what the operating system offers.
"""
