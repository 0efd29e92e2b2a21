"""Decide: pure functions from what was observed and the time to a plan of writes."""
