"""The command `shardwise`: what a person types. Every command is one module; `app.py` puts them together."""
