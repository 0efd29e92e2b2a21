"""The admission policy of jobs: all rules across fields that need no accelerator class, in one message.

As rules of the CRD they would be held against each write of a status too, which takes the API server longer than the
write itself (docs/decisions/0016-what-a-status-write-costs.md). Here a job is looked at when it is new or its spec
changes, so that a rule that is new locks no job that is there.
"""

import json
import re
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from shardwise.job.spec.base import DNS_LABEL
from shardwise_operator.api.admission import admission
from shardwise_operator.api.cel import Rule
from shardwise_operator.api.job_rules import JOB_RULES
from shardwise_operator.api.pod_rules import POD_RULES
from shardwise_operator.api.program_rules import PROGRAM_RULES

_ITEM = "*"
_SELF = re.compile(r"\bself\b")
# What a message calls an item of a list by, where that is not its name.
_CALLED = {"phases": "string(item.fromStep)"}
_MOST_SAID = 4000  # characters; the API server takes a message of one line and 5 KiB, or else says the other one
_UNSAID = "spec: expected fields that go together; `shardwise check` lists those that do not"

_NAME_RULE = Rule(
    at="metadata",
    holds=f"self.name.size() <= 40 && self.name.matches('{DNS_LABEL}')",
    message="expected 1 to 40 characters: lower-case letters, digits and '-', a letter or digit at both ends",
    field=".name",
)
RULES = (_NAME_RULE, *PROGRAM_RULES, *JOB_RULES, *POD_RULES)


def job_policy() -> dict[str, dict[str, Any]]:
    """Return the policy and its binding, by the names of their files."""
    groups = {
        "in" + "".join(part[:1].upper() + part[1:] for part in group.split(".")): _mistakes(group, list(rules))
        for group, rules in groupby(sorted(RULES, key=_group), key=_group)
    }
    together = " + ".join(f"variables.{name}" for name in groups)
    return admission(
        "jobs",
        {"spec-is-new": "request.operation == 'CREATE' || object.spec != oldObject.spec"},
        variables=groups
        | {
            "mistakes": f"({together}).filter(mistake, mistake != '')",
            "text": r"variables.mistakes.join('; ').replace('\n', ' ')",
        },
        validations=[
            {
                "expression": "variables.mistakes.size() == 0",
                "messageExpression": f"variables.text.size() <= {_MOST_SAID} ? variables.text "
                f": variables.text.substring(0, {_MOST_SAID}) + ' ...'",
                "message": _UNSAID,
            }
        ],
    )


def _group(rule: Rule) -> str:
    """Return the group that a rule hangs at, or the list of whose items it is."""
    return rule.at.partition(_ITEM)[0].removesuffix(".")


def _mistakes(group: str, rules: Sequence[Rule]) -> str:
    """Return a list of texts in CEL about what does not hold in a group; empty ones are of rules that hold."""
    path, parts = f"object.{group}", group.split(".")
    there = " && ".join(f"has(object.{'.'.join(parts[:depth])})" for depth in range(2, len(parts) + 1))
    of_group = [f"{_seen(rule.holds, path)} ? '' : {_text(rule, path)}" for rule in rules if _ITEM not in rule.at]
    lists = [f"[{', '.join(of_group)}]"] * bool(of_group) + [_of_items(rule) for rule in rules if _ITEM in rule.at]
    return f"{there} ? {' + '.join(lists)} : []" if there else " + ".join(lists)


def _of_items(rule: Rule) -> str:
    """Return a text about each item of a list of which a rule does not hold."""
    group, _, below = rule.at.partition(f".{_ITEM}")
    called = _CALLED.get(group.rpartition(".")[2], "item.name")
    field = f"{below}{rule.field}".replace(f".{_ITEM}", "[]")
    text = f"{_quoted(group + '[')} + {called} + {_quoted(f']{field}: {rule.message}')}"
    return f"object.{group}.filter(item, !{_below('item', below.split('.')[1:], rule.holds)}).map(item, {text})"


def _below(path: str, groups: Sequence[str], holds: str) -> str:
    """Return whether what must hold of a group does; one that is not there is right."""
    if not groups:
        return _seen(holds, path)
    if groups[0] == _ITEM:
        return f"{path}.all(inner, {_below('inner', groups[1:], holds)})"
    path = f"{path}.{groups[0]}"
    return f"(!has({path}) || {_below(path, groups[1:], holds)})"


def _text(rule: Rule, path: str) -> str:
    begin = f"{rule.at}{rule.field}: "
    return f"{_quoted(begin)} + {_seen(rule.message, path)}" if rule.shows else _quoted(begin + rule.message)


def _seen(expression: str, path: str) -> str:
    """Return an expression about `self` as one about a path."""
    return f"({_SELF.sub(path, expression)})"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
