"""`python -m shardwise_operator` is `shardwise-operator`."""

from shardwise_operator.main import main

main()
