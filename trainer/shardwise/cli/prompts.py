"""The prompts that a person gives, one or a file of many."""

import json
from pathlib import Path

from shardwise.protocol.errors import UsageError


def read_prompts(path: Path) -> list[str]:
    """Return the prompts of a file: of JSON lines if its name ends with .jsonl, else one on each line.

    Raises:
        UsageError: the file cannot be read, is no UTF-8, has no prompt, or a line is no object with a text `prompt`
            that can be written as UTF-8.

    """
    lines = lines_of(path)
    if path.suffix != ".jsonl":
        return lines
    return [_prompt(path, number, line) for number, line in enumerate(lines, 1) if line.strip()]


def lines_of(path: Path) -> list[str]:
    """Return the lines of a file of prompts, of which there is at least one; UsageError if it cannot be read."""
    try:
        text = path.read_text(encoding="utf-8").removeprefix("\ufeff")  # an editor's mark, no text
    except OSError as error:
        raise UsageError(f"--prompts: {path} cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"--prompts: {path} is not UTF-8 at byte {error.start}; save it as UTF-8") from error
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    found = lines if lines[-1] else lines[:-1]  # an empty line is a prompt: a new document
    if not found or (path.suffix == ".jsonl" and not text.strip()):
        raise UsageError(f"--prompts: {path} is empty, expected a prompt on each line")
    return found


def refuse_broken_text(prompt: str) -> None:
    """Raise UsageError if the prompt came as bytes of another encoding."""
    try:
        prompt.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UsageError(
            f"--prompt: character {error.start} is no text in this terminal's encoding; use UTF-8"
        ) from error


def _prompt(path: Path, number: int, line: str) -> str:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UsageError(f'--prompts: {path}, line {number} is no JSON; expected {{"prompt": "TEXT"}}') from error
    if not isinstance(found, dict) or not isinstance(prompt := found.get("prompt"), str):
        raise UsageError(f'--prompts: {path}, line {number}: expected an object with a text: {{"prompt": "TEXT"}}')
    try:
        prompt.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UsageError(
            f"--prompts: {path}, line {number}: half a surrogate pair at character {error.start} of the prompt; "
            "expected text"
        ) from error
    return prompt
