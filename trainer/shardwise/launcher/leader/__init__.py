"""The leader of a run, in the agent of host 0: attempts, causes, budgets, the watchdog, the status."""
