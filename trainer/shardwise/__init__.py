"""Shardwise trains GPTs over many hosts from one job file.  This module only carries the version."""

__version__ = "0.1.0"
