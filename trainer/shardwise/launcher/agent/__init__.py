"""The agent of one host: its trainer process, its server, its connection to the leader."""
