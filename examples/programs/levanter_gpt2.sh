#!/bin/sh
# Levanter as it is, from its own command line: it is only told which process it is. It reads levanter_gpt2.yaml, and
# text.jsonl with a "text" on each line, in this folder. Levanter 1.2 does not run with JAX 0.10, and did with
# 0.7.2, so it has an environment of its own, whose python comes first on the PATH.
#   PATH=levanter/bin:$PATH shardwise run --hosts 2 --devices 2 -- sh levanter_gpt2.sh
set -eu
# Each process makes the cache of tokens if there is none, two of them over each other. So the first makes it before,
# with a step by itself, while the others wait for it.
if [ "$SHARDWISE_RANK" = 0 ] && [ ! -e cache/whole ]; then
  python -m levanter.main.train_lm --config levanter_gpt2.yaml --trainer.num_train_steps 1 --trainer.id tokens
  touch cache/whole
fi
exec python -m levanter.main.train_lm --config levanter_gpt2.yaml \
  --trainer.distributed.coordinator_address "$SHARDWISE_COORDINATOR" \
  --trainer.distributed.num_processes "$SHARDWISE_NUM_PROCESSES" \
  --trainer.distributed.process_id "$SHARDWISE_RANK" "$@"
