"""Runs the tours and writes their pages (`make tour`); the tours know nothing of it."""
