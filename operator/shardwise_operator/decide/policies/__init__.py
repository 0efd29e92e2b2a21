"""The policies: each decides one thing, purely, from what was observed and the time. Their order is elsewhere."""
