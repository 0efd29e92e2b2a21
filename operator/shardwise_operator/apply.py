"""Carries a plan out. Every write has a precondition, so one that was decided on an old view is refused or harmless.

An object is only ever made under a name that nobody has. Where somebody has it, and it is not this job's, nothing is
touched and the rest of the plan waits: the status says whose name is in the way.
"""

from dataclasses import dataclass, field

from shardwise_operator.agents import Target
from shardwise_operator.asks import Asks
from shardwise_operator.observed import Observed
from shardwise_operator.plan import Apply, AskSave, AskStop, Create, Delete, Event, Patch, Plan
from shardwise_operator.poll import Key
from shardwise_operator.render.names import controller_of
from shardwise_operator.render.secret import Tokens
from shardwise_operator.runtime.errors import AlreadyExistsError, ForbiddenError, InvalidError
from shardwise_operator.runtime.kinds import CONFIG_MAPS, PODS, SECRETS, Kind, Object
from shardwise_operator.runtime.transport import Api
from shardwise_operator.words import NAME_CONFLICT, QUOTA, REFUSED


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

    def apply(self, seen: Observed, plan: Plan) -> Outcome:
        """Carry the steps out, in their order, up to one that is refused.

        Raises:
            KubernetesError: the API server did not answer, or a precondition did not hold: the plan was made on an
                old view.

        """
        outcome = Outcome()
        for step in plan.steps:
            match step:
                case Create():
                    self._create(seen, step, outcome)
                case Apply():
                    self._api.apply(step.kind, dict(step.manifest))
                case Patch():
                    self._api.patch(step.kind, seen.namespace, step.name, dict(step.patch), uid=step.uid)
                case Delete():
                    self._api.delete(
                        step.kind, seen.namespace, step.name, uid=step.uid, grace_seconds=step.grace_seconds
                    )
                case AskStop():
                    self._ask(seen, step)
                case AskSave():
                    if self._ask(seen, step):
                        outcome.leaving.update(step.leaving)
                        outcome.events.append(step.heard)
            if outcome.reason:
                break
        return outcome

    def forget(self, key: Key) -> None:
        """The job is gone, or another's."""
        self._asks.forget(key)

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
