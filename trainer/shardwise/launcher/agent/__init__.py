"""The agent of one host: its trainer process, its server, its bond to the leader."""
