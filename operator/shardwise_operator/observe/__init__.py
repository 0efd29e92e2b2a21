"""Observe one job and all that belongs to it: from the caches, the API server and host 0."""
