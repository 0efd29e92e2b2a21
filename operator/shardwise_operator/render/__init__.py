"""Renders the objects of a job, each as a whole, from what was observed. Pure: `policies/` says when they are made."""
