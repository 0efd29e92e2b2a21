"""Run `shardwise-operator` as `python -m shardwise_operator`."""

from shardwise_operator.main import main

main()
