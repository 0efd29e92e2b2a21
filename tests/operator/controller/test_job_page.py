"""The page of all jobs of an operator on a real API server: what it shows, and that it asks for nothing."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.operator.building import manifest
from tests.operator.operating import Operator, Place, StandInAgents, told

from shardwise_operator.page.serve import JobsPages
from shardwise_operator.runtime.access import TokenFile
from shardwise_operator.runtime.web import Request

TOKEN = "t" * 48
VERBS = ("get", "list", "watch", "create", "apply", "update", "update_status", "patch", "delete")


def pages_of(operator: Operator, folder: Path) -> JobsPages:
    """Return what the operator serves."""
    (folder / "token").write_text(TOKEN, encoding="utf-8")
    return JobsPages(operator._controller.jobs, lambda: True, token=TokenFile(folder / "token"))


def rows(made: JobsPages) -> dict[str, dict[str, Any]]:
    """Return the jobs that are shown, by name."""
    answer = made.pages["/jobs.json"](Request(authorization=f"Bearer {TOKEN}"))
    return {job["name"]: job for job in json.loads(answer.body)["jobs"]}


def test_a_job_that_trains_and_one_that_waits(
    place: Place, agents: StandInAgents, operator: Operator, tmp_path: Path
) -> None:
    """Each with what is known of it, and host 0's pod to go to; a deleted job is gone."""
    pages = pages_of(operator, tmp_path)
    agents.answer = told(checkpoint={"step": 8, "seconds": 1.0}, restarts={"failure": 1})
    place.train(manifest())
    place.apply(manifest("later", suspend=True))
    place.until(
        "both",
        lambda: {name: job["phase"] for name, job in rows(pages).items()} == {"job": "Running", "later": "Suspended"},
    )
    place.until("its figures", lambda: rows(pages)["job"].get("checkpointStep") == 8)
    job = rows(pages)["job"]

    assert (job["step"], job["numSteps"], job["tokensPerSecond"], job["mfu"]) == (10, 100, 1000, 0.25)
    assert (job["restarts"], job["pod"], job["etaSeconds"], job["hosts"]) == ({"failure": 1}, "job-0-0-0", 180, 2)
    place.delete("later")
    place.until("its end", lambda: rows(pages).keys() == {"job"})


def test_the_page_asks_the_api_server_for_nothing(place: Place, operator: Operator, tmp_path: Path) -> None:
    """All of it is in the cache that the operator keeps anyway: no request is made, however often it is made."""
    place.apply(manifest(suspend=True))
    place.until_phase("Suspended")
    pages = pages_of(operator, tmp_path)

    def asked() -> list[int]:
        return [operator.requests(verb, but=("leases",)) for verb in VERBS]

    place.until("its row", lambda: rows(pages).get("job", {}).get("phase") == "Suspended")
    before = _settled(place, asked)
    for _ in range(20):
        pages._make()
    assert asked() == before


def _settled(place: Place, asked: Callable[[], list[int]]) -> list[int]:
    """Return the counts once a look finds them as the look before did."""
    seen: list[list[int]] = [[]]

    def same() -> bool:
        seen.append(asked())
        return seen[-1] == seen[-2]

    place.until("the operator to be at rest", same)
    return seen[-1]
