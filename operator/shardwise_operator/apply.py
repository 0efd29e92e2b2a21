"""Carries a plan out. Every write has a precondition, so one that was decided on an old view is refused or harmless.

An object is only ever made under a name that nobody has. Where somebody has it, and it is not this job's, nothing is
touched and the rest of the plan waits: the status says whose name is in the way. The pods of a job are made several at
a time, first one, then twice as many each time: where the first is refused, so would be the others.
"""

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import groupby

from shardwise_operator.agents import Target
from shardwise_operator.asks import Asks
from shardwise_operator.observed import Observed
from shardwise_operator.plan import AskSave, AskStop, Create, Delete, Event, Patch, Plan, Step
from shardwise_operator.poll import Key
from shardwise_operator.render.names import controller_of
from shardwise_operator.render.secret import Tokens
from shardwise_operator.runtime.errors import AlreadyExistsError, ForbiddenError, InvalidError
from shardwise_operator.runtime.kinds import CONFIG_MAPS, PODS, SECRETS, Kind, Object
from shardwise_operator.runtime.transport import Api
from shardwise_operator.words import NAME_CONFLICT, QUOTA, REFUSED

_MOST_AT_ONCE = 16
_SHOWN_WITHIN_SECONDS = 10.0  # by the cache, at the latest; then what it does not show is written again


@dataclass
class Outcome:
    """What came of a plan: the objects that are there now, and what was in the way of the rest, with its reason.

    `leaving` is the nodes, by host, for which a save was asked for and somebody heard it; `events` tell of that.
    """

    made: list[tuple[Kind, Object]] = field(default_factory=list)
    leaving: dict[str, str] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    reason: str = ""
    message: str = ""

    @property
    def pods(self) -> list[Object]:
        """The pods among them."""
        return [obj for kind, obj in self.made if kind == PODS]


class Applier:
    """Carries plans out."""

    def __init__(self, api: Api, asks: Asks, tokens: Tokens) -> None:
        """Write through `api`, and ask host 0 through `asks`."""
        self._api, self._asks, self._tokens = api, asks, tokens
        self._pool = ThreadPoolExecutor(_MOST_AT_ONCE, thread_name_prefix="pods")
        self._patched: dict[Key, list[tuple[Patch, float]]] = {}

    def apply(self, seen: Observed, plan: Plan) -> Outcome:
        """Carry the steps out, in their order, up to one that is refused.

        Raises:
            KubernetesError: the API server did not answer, or a precondition did not hold: the plan was made on an
                old view.

        """
        outcome = Outcome()
        for _, steps in groupby(plan.steps, _is_of_a_pod):
            self._carry_out_all(seen, list(steps), outcome)
            if outcome.reason:
                break
        return outcome

    def forget(self, key: Key) -> None:
        """The job is gone, or another's."""
        self._asks.forget(key)
        self._patched.pop(key, None)

    def _carry_out_all(self, seen: Observed, steps: Sequence[Step], outcome: Outcome) -> None:
        pods = [step for step in steps if isinstance(step, Create) and _is_of_a_pod(step)]
        if pods:
            self._create_all(seen, pods, outcome)
            return
        for step in steps:
            self._carry_out(seen, step, outcome)
            if outcome.reason:
                return

    def _carry_out(self, seen: Observed, step: Step, outcome: Outcome) -> None:
        match step:
            case Create():
                self._create(seen, step, outcome)
            case Patch():
                self._patch(seen, step)
            case Delete():
                self._api.delete(step.kind, seen.namespace, step.name, uid=step.uid, grace_seconds=step.grace_seconds)
            case AskStop():
                self._ask(seen, step)
            case AskSave():
                if self._ask(seen, step):
                    outcome.leaving.update(step.leaving)
                    outcome.events.append(step.heard)

    def _create_all(self, seen: Observed, steps: Sequence[Create], outcome: Outcome) -> None:
        """Make objects that do not depend on each other, up to those that are refused."""
        begin, many = 0, 1
        while begin < len(steps) and not outcome.reason:
            batch = [(step, Outcome()) for step in steps[begin : begin + many]]
            made = [self._pool.submit(self._create, seen, step, own) for step, own in batch[1:]]
            self._create(seen, *batch[0])  # in the pass's own thread, by which it is known to get on
            for each in made:
                each.result()
            for _, own in batch:
                outcome.made += own.made
                if own.reason:
                    outcome.reason, outcome.message = own.reason, own.message
            begin, many = begin + many, min(2 * many, _MOST_AT_ONCE)

    def _create(self, seen: Observed, step: Create, outcome: Outcome) -> None:
        try:
            made = self._api.create(step.kind, dict(step.manifest))
        except AlreadyExistsError as error:
            self._there_already(seen, step, outcome, error)
        except ForbiddenError as error:
            outcome.reason = QUOTA if "exceeded quota" in error.message else REFUSED
            outcome.message = error.message
        except InvalidError as error:
            outcome.reason, outcome.message = REFUSED, error.message
        else:
            outcome.made.append((step.kind, made))

    def _patch(self, seen: Observed, step: Patch) -> None:
        """Once, though passes that follow at once may want the same: the cache does not show it yet."""
        key, now = (seen.namespace, seen.name), time.monotonic()
        lately = [each for each in self._patched.get(key, ()) if now - each[1] < _SHOWN_WITHIN_SECONDS]
        if step not in [patched for patched, _ in lately]:
            self._api.patch(step.kind, seen.namespace, step.name, dict(step.patch), uid=step.uid)
            lately.append((step, now))
        self._patched[key] = lately

    def _there_already(self, seen: Observed, step: Create, outcome: Outcome, error: AlreadyExistsError) -> None:
        if step.kind == SECRETS:  # its name has the job's UID in it
            return
        name = step.manifest["metadata"]["name"]
        found = self._api.get(step.kind, seen.namespace, name)
        if controller_of(found) != seen.uid:
            outcome.reason = NAME_CONFLICT
            outcome.message = f"{step.kind.kind} {name} is there already and is not this job's: rename one of the two"
        elif step.kind == CONFIG_MAPS:  # the pods of this plan are made of something else
            raise error
        else:
            outcome.made.append((step.kind, found))

    def _ask(self, seen: Observed, step: AskStop | AskSave) -> bool:
        """Whether host 0 has taken the request, which takes a pass or more."""
        target = Target(pod="", address=step.address, token=self._tokens.status(seen.uid))
        return self._asks.ask((seen.namespace, seen.name), target, step)


def _is_of_a_pod(step: Step) -> bool:
    return isinstance(step, Create) and step.kind == PODS
