"""Ray between the agents: its processes on each host, and the leader's requests through them."""
