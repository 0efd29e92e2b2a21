"""The job file: its fields, its rules, and what follows from it alone. Needs pydantic and PyYAML, no more.

Begin at `load.py`: file -> document -> overrides -> validate -> resolve -> rules.
"""
