"""The language that all of Shardwise shares: job file, contract and errors.  Needs pydantic and PyYAML, no more.

Begin at `load.py`: file -> document -> overrides -> validate -> resolve -> rules.
"""
