"""The words of conditions and Events are those of docs/events.md, each declared once."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardwise.job.spec.recovery import Restarts
from shardwise.protocol.contract import Cause
from shardwise.protocol.run_status import RunPhase
from shardwise_operator import reasons
from shardwise_operator.decide.policies.outcome import OUTCOMES

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs" / "events.md"
SOURCES = sorted((ROOT / "operator" / "shardwise_operator").rglob("*.py"))
DECLARED = {name: value for name, value in vars(reasons).items() if name.isupper() and isinstance(value, str)}
# Where the reason is among the arguments of what sends an Event or sets a condition.
SENDS = {"Event": 0, "warning": 1, "failed": 1, "next_round": 2}
SETS = {"at": 2, "with_condition": 2, "at_rest": 0, "queued_again": 1}


def _table(name: str) -> dict[str, list[str]]:
    """Return the cells of a table of the page by the word in the first."""
    text = DOCS.read_text(encoding="utf-8")
    (body,) = re.findall(rf"<!-- {name} -->\n(.*?)<!-- end of {name} -->", text, re.DOTALL)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in body.splitlines()[2:]]
    words = [first.strip("`") for first, *_ in rows]
    assert words == sorted(set(words))
    return {word: cells for word, (_, *cells) in zip(words, rows, strict=True)}


def _given(calls: dict[str, int]) -> Iterator[ast.expr]:
    """Yield what the operator's code gives as the reason in these calls."""
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name == "at" and not node.keywords:
                continue  # a path into an object, not the state at a time
            if len(node.args) > calls.get(name, len(node.args)):
                yield node.args[calls[name]]


def _names(given: Iterator[ast.expr]) -> set[str]:
    found = {node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "") for node in given}
    return found & DECLARED.keys()


def test_every_condition_is_on_the_page() -> None:
    """The page has the conditions that a job can have, and no others."""
    assert list(_table("conditions")) == sorted(reasons.CONDITIONS)


def test_every_reason_is_on_the_page() -> None:
    """The page has each reason that is declared, with the type of its Event, and with what to do."""
    table = _table("reasons")
    types_alone = {reasons.FAILED, reasons.FEWER_SLICES, reasons.FITS, reasons.READY, reasons.RECONCILING}
    types_alone |= {reasons.SCHEDULED}

    assert set(table) == set(DECLARED.values()) - types_alone - {reasons.TRUE, reasons.FALSE, reasons.UNKNOWN}
    assert {word: event for word, (event, _, _) in table.items()} == {
        word: reasons.EVENTS.get(word, "") for word in table
    }
    assert all(when and do for _, when, do in table.values())


def test_what_is_sent_is_declared_as_an_event() -> None:
    """Each reason that the code names where it sends an Event has a type, and is not written out there."""
    sent = _names(_given(SENDS))

    assert len(sent) > 20
    assert {DECLARED[name] for name in sent} <= reasons.EVENTS.keys()
    written = [ast.unparse(node) for node in _given(SENDS | SETS) if isinstance(node, ast.Constant) and node.value]
    assert not written


def test_what_a_run_reports_is_declared() -> None:
    """The phases that host 0 reports are reasons, and the causes of failure are reasons with a warning."""
    assert {phase.capitalize() for phase in RunPhase} <= set(DECLARED.values())
    own = {cause[0].upper() + cause[1:] for cause in Cause if cause != Cause.NONFINITE}  # it has its exit code
    assert {reasons.EVENTS[word] for word in own | set(OUTCOMES.values())} == {"Warning"}


def test_every_cause_of_a_lost_pod_is_on_the_page() -> None:
    """docs/many-hosts.md says of each cause what befell the pod, with its budget; a host that is lost is the run's."""
    page = (ROOT / "docs" / "many-hosts.md").read_text(encoding="utf-8")
    (body,) = re.findall(r"\| Cause \| The pod \|.*?\n\|---.*?\n(.*?)\n\n", page, re.DOTALL)
    of_pods = [cause for cause in reasons.Lost if cause != reasons.Lost.HOST_LOST]

    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in body.splitlines()]
    assert [(cause, budget) for cause, _, budget in rows] == [
        (f"`{cause}`", f"`{cause}: {Restarts().of(cause)}`") for cause in of_pods
    ]


@pytest.mark.parametrize(("reason", "kind"), [("Saved", "Normal"), ("PodReplaced", "Warning"), ("NewCause", "Warning")])
def test_type_of_an_event(reason: str, kind: str) -> None:
    """An Event's type follows from its reason; a cause that only an image knows is a warning."""
    assert reasons.event_type(reason) == kind
