"""The command `shardwise-operator` with stand-ins in the place of the agents of host 0, and nothing else changed.

Started by `operators.py` as a process of its own. What host 0 answers lies in a folder, a file for each address; where
there is none, it is silent.
"""

import os
from pathlib import Path
from unittest.mock import patch

from shardwise.protocol.run_status import RunSummary
from shardwise_operator import main, operator
from shardwise_operator.observe.agents import AgentError, Agents, Target

ANSWERS = "SHARDWISE_STAND_IN_ANSWERS"


class _Files(Agents):
    """Reads what an agent would answer."""

    def status(self, target: Target) -> RunSummary:
        """What the file of the address says."""
        try:
            return RunSummary.model_validate_json((Path(os.environ[ANSWERS]) / target.address).read_bytes())
        except FileNotFoundError:
            raise AgentError(f"{target.address}: silence") from None


if __name__ == "__main__":
    with patch.object(operator, "Agents", _Files):
        main.main()
