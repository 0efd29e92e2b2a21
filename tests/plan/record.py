"""Records what the compilers made of each program that the tests ask for: `make compiled`, after a change of programs.

The record saves time and decides nothing: a program that it does not know is compiled by the tests, and one that nobody
asks for any more is left out of the next record.
"""

import json
from itertools import groupby

from tests.plan.compiling import RECORDED, Request, answers
from tests.plan.table import ROWS
from tests.plan.test_compiles_examples import EXAMPLES

from shardwise.job.load import load

_OF_THE_LINE = ("job", "program", "key", "seconds")


def main() -> None:
    """Compile what is not known, and write the record."""
    requests = [*(row.request for row in ROWS), *(Request(load(path)) for path in EXAMPLES)]
    record = {}
    for accelerator, group in groupby(sorted(requests, key=_accelerator), key=_accelerator):
        print(f"{accelerator} ...", flush=True)  # noqa: T201  progress, for a person
        for answer in answers(list(group)):
            for line in answer.values():
                assert "error" not in line, line["error"]
                record[line["key"]] = {name: value for name, value in line.items() if name not in _OF_THE_LINE}
    lines = (json.dumps({"key": key, "said": record[key]}) + "\n" for key in sorted(record))
    RECORDED.write_text("".join(lines), encoding="utf-8")


def _accelerator(request: Request) -> str:
    return request.accelerator


if __name__ == "__main__":
    main()
