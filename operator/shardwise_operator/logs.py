"""The operator's log: one JSON object per line, or a line of text."""

import json
import logging
import sys
from datetime import UTC, datetime
from enum import StrEnum

_TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class LogLevel(StrEnum):
    """The least of what is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(StrEnum):
    """How a record is written."""

    JSON = "json"
    TEXT = "text"


class _Lines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line."""
        line = {
            "time": datetime.fromtimestamp(record.created, tz=UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


def write_logs(level: LogLevel, form: LogFormat) -> None:
    """Write all log records from a level on to stderr from now on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Lines() if form == LogFormat.JSON else logging.Formatter(_TEXT))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
