#!/bin/sh
# Levanter as it is, from its own command line: it only learns from the environment which process it is.
#   python -m levanter.main.cache_dataset --config levanter_gpt2.yaml         # once: the tokens
#   shardwise run --hosts 2 --devices 2 -- sh levanter_gpt2.sh
set -eu
exec python -m levanter.main.train_lm --config levanter_gpt2.yaml \
  --trainer.distributed.coordinator_address "$SHARDWISE_COORDINATOR" \
  --trainer.distributed.num_processes "$SHARDWISE_NUM_PROCESSES" \
  --trainer.distributed.process_id "$SHARDWISE_RANK" "$@"
