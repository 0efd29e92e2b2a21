"""`shardwise run` as the tests start it: the real command, with fake trainers and, unless it is given "ray", no Ray.

python command.py JOB DIR [ray]
"""

import json
import sys
from pathlib import Path
from unittest.mock import patch

from rich.console import Console
from rich.text import Text

from shardwise.job.load import load
from shardwise.job.resolve import resolve
from shardwise.launcher import local
from shardwise.launcher.agent import config
from shardwise.protocol.errors import ShardwiseError
from shardwise.protocol.run_status import RunStatus

HERE = Path(__file__).parent


def main() -> None:
    """Run the job."""
    job, directory, *ray = sys.argv[1:]
    local.STOPPED_SECONDS = 1.0
    config.TRAINER = (sys.executable, str(HERE / "fake_trainer.py"))
    if not ray:
        local.AGENT = (sys.executable, str(HERE / "stand_in_agent.py"))
    if json.loads((Path(directory) / "fake.json").read_text()).get("lineFails"):
        patch("shardwise.launcher.local.status_line", no_line).start()
    try:
        resolved, consoles = resolve(load(Path(job))), {"console": Console(), "errors": Console(stderr=True)}
        sys.exit(local.run(resolved, Path(directory), fork=False, step=None, **consoles))
    except ShardwiseError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(error.exit_code)


def no_line(status: RunStatus) -> Text:
    """Fail, in the place of the line of a status."""
    raise TypeError(f"no line of {status.name}")


if __name__ == "__main__":
    main()
