"""Carry out a plan. Every write has a precondition, so one that was decided on an old view is refused or harmless.

An object is only created under a free name. If another object has the name and is not this job's, nothing is touched
and the rest of the plan waits: the status names it. The pods of a job are created several at a time, first one, then
twice as many each time: if the first is refused, the others would be too.
"""

import logging
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from http import HTTPStatus
from itertools import groupby

from shardwise.protocol.pods import JOB_LABEL
from shardwise_operator.decide.plan import (
    Create,
    Delete,
    Event,
    Patch,
    Plan,
    ReplaceStatus,
    RequestSave,
    RequestStop,
    Step,
)
from shardwise_operator.observe.agents import Target
from shardwise_operator.observe.made_pods import is_made
from shardwise_operator.observe.observed import Observed
from shardwise_operator.observe.state import Phase
from shardwise_operator.reasons import NAME_CONFLICT, QUOTA, REFUSED
from shardwise_operator.render.names import MANAGED_BY_LABEL, MANAGER
from shardwise_operator.render.secret import Tokens
from shardwise_operator.runtime.errors import AlreadyExistsError, ApiError, ForbiddenError, InvalidError
from shardwise_operator.runtime.kinds import CONFIG_MAPS, PODS, SECRETS, TRAINING_JOBS, Kind, Object
from shardwise_operator.runtime.queue import Key
from shardwise_operator.runtime.store import controller_uid
from shardwise_operator.runtime.transport import Api
from shardwise_operator.write.requests import Requests

_log = logging.getLogger(__name__)

_MAX_AT_ONCE = 16
_CACHE_LAG_SECONDS = 10.0  # at most; a patch that the cache does not show by then is written again


@dataclass
class Outcome:
    """The outcome of a plan: the objects that exist now, and why the rest was refused, if it was.

    Attributes:
        made: the objects that this plan has created, or found to exist already.
        leaving: by host, the nodes for which host 0 has agreed to save.
        events: those of the requests that host 0 has taken.
        reason: why a step was refused, and with it all after it; "" if none was.
        message: the same for people.
        refused: the error, if that step was a change or a deletion, which says nothing of where the pods are.

    """

    made: list[tuple[Kind, Object]] = field(default_factory=list)
    leaving: dict[str, str] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    reason: str = ""
    message: str = ""
    refused: ForbiddenError | None = None

    @property
    def pods(self) -> list[Object]:
        """Return the pods among the objects."""
        return [obj for kind, obj in self.made if kind == PODS]

    def add(self, other: "Outcome") -> None:
        """Take in the outcome of further steps."""
        self.made += other.made
        self.leaving |= other.leaving
        self.events += other.events
        if other.reason:
            self.reason, self.message, self.refused = other.reason, other.message, other.refused

    def refuse(self, error: ForbiddenError) -> None:
        """Note that a change or a deletion was refused."""
        self.reason, self.message, self.refused = REFUSED, error.message, error


class Applier:
    """Carries out the plans of all jobs."""

    def __init__(self, api: Api, requests: Requests, tokens: Tokens) -> None:
        """Write through `api`, and send requests to host 0 through `requests`."""
        self._api, self._requests, self._tokens = api, requests, tokens
        self._pool = ThreadPoolExecutor(_MAX_AT_ONCE, thread_name_prefix="pods")
        self._changed: dict[Key, list[tuple[Patch | ReplaceStatus, float]]] = {}

    def apply(self, seen: Observed, plan: Plan) -> Outcome:
        """Carry out the steps in their order, up to one that is refused.

        Raises:
            KubernetesError: the API server did not answer, or a precondition did not hold: the plan was made on an
                old view. Or it refused a change for a job that rests: its reason is how it ended, and stays.

        """
        outcome = Outcome()
        # Pods in a row are created in parallel; every other step is carried out alone, as later ones may depend on it.
        for creates_pods, steps in groupby(plan.steps, lambda step: isinstance(step, Create) and step.kind == PODS):
            self._carry_out_all(seen, list(steps), outcome, most=_MAX_AT_ONCE if creates_pods else 1)
            if outcome.reason:
                break
        if outcome.refused and (plan.state.finished or plan.state.phase == Phase.SUSPENDED):
            raise outcome.refused
        if outcome.refused and outcome.message != seen.state.message:
            outcome.events.append(Event(REFUSED, outcome.message))
        return outcome

    def forget(self, key: Key) -> None:
        """Drop what is kept of a job that is gone, or is not this operator's."""
        self._requests.forget(key)
        self._changed.pop(key, None)

    def _carry_out_all(self, seen: Observed, steps: Sequence[Step], outcome: Outcome, *, most: int) -> None:
        """Carry out steps in growing batches, each with up to `most` at once, up to one with a refusal."""
        begin, many = 0, 1
        while begin < len(steps) and not outcome.reason:
            batch = [(step, Outcome()) for step in steps[begin : begin + many]]
            others = [self._pool.submit(self._carry_out, seen, step, own) for step, own in batch[1:]]
            try:
                # In the pass's own thread: the health check sees by its requests that the pass makes progress.
                self._carry_out(seen, *batch[0])
            finally:
                wait(others)  # or a pod could be made after the pass that has failed
            for each in others:
                each.result()
            for _, own in batch:
                outcome.add(own)
            begin, many = begin + many, min(2 * many, most)

    def _carry_out(self, seen: Observed, step: Step, outcome: Outcome) -> None:
        match step:
            case Create():
                self._create(seen, step, outcome)
            case Patch() | ReplaceStatus():
                self._change(seen, step, outcome)
            case Delete():
                self._delete(seen, step, outcome)
            case RequestStop():
                self._request(seen, step)
            case RequestSave():
                if self._request(seen, step):
                    outcome.leaving.update(step.leaving)
                    outcome.events.append(step.accepted)

    def _create(self, seen: Observed, step: Create, outcome: Outcome) -> None:
        try:
            made = self._api.create(step.kind, dict(step.manifest))
        except AlreadyExistsError as error:
            self._exists(seen, step, outcome, error)
        except ForbiddenError as error:
            # The API server has no reason of its own for a quota: its admission plugin says so only in the message.
            outcome.reason = QUOTA if "exceeded quota" in error.message else REFUSED
            outcome.message = error.message
        except InvalidError as error:
            outcome.reason, outcome.message = REFUSED, error.message
        except ApiError as error:
            # An admission webhook that does not answer, and may not for long: the status has to say so. If the API
            # server itself is in trouble, the status cannot be written either, and the pass fails by that.
            if error.status < HTTPStatus.INTERNAL_SERVER_ERROR:
                raise
            outcome.reason, outcome.message = REFUSED, error.message
        else:
            outcome.made.append((step.kind, made))

    def _delete(self, seen: Observed, step: Delete, outcome: Outcome) -> None:
        try:
            self._api.delete(step.kind, seen.namespace, step.name, uid=step.uid, grace_seconds=step.grace_seconds)
        except ForbiddenError as error:  # by an older chart's role, say
            if not step.may_stay:
                outcome.refuse(error)
                return
            _log.warning("%s %s stays: %s", step.kind.kind, step.name, error.message)

    def _change(self, seen: Observed, step: Patch | ReplaceStatus, outcome: Outcome) -> None:
        """Change an object once: the next passes decide the same, because the cache does not show the change yet."""
        now = time.monotonic()
        lately = [each for each in self._changed.get(seen.key, ()) if now - each[1] < _CACHE_LAG_SECONDS]
        if step not in [changed for changed, _ in lately]:
            try:
                if isinstance(step, Patch):
                    self._api.patch(step.kind, seen.namespace, step.name, dict(step.patch), uid=step.uid)
                else:
                    self._api.replace_status(step.kind, dict(step.obj))
            except ForbiddenError as error:
                outcome.refuse(error)
            else:
                lately.append((step, now))
        self._changed[seen.key] = lately

    def _exists(self, seen: Observed, step: Create, outcome: Outcome, error: AlreadyExistsError) -> None:
        if step.kind == SECRETS:  # its name has the job's UID in it, so it is this job's
            return
        name = step.manifest["metadata"]["name"]
        found = self._api.get(step.kind, seen.namespace, name)
        if controller_uid(found) != seen.uid:
            outcome.reason = NAME_CONFLICT
            outcome.message = f"{step.kind.kind} {name} is there already and is not this job's: {_way_out(seen, found)}"
        elif step.kind == PODS and not is_made(seen.name, found):
            outcome.reason = NAME_CONFLICT
            outcome.message = f"Pod {name} is there already, and names the job without being of it: delete it"
        elif step.kind == CONFIG_MAPS:
            if found["metadata"].get("labels", {}).get(MANAGED_BY_LABEL) != MANAGER:
                # It has lost the label by which it is watched, and would never be seen: it is made anew.
                self._api.delete(step.kind, seen.namespace, name, uid=found["metadata"]["uid"])
            # This round's snapshot exists, and the pods of this plan were made of another: the next pass reads it.
            raise error
        else:
            outcome.made.append((step.kind, found))

    def _request(self, seen: Observed, step: RequestStop | RequestSave) -> bool:
        """Return whether host 0 accepted this request earlier; otherwise send it."""
        target = Target(pod="", address=step.address, tokens=self._tokens.statuses(seen.uid))
        return self._requests.send(seen.key, target, step)


def _way_out(seen: Observed, found: Object) -> str:
    """Return what frees a name that something else has: an earlier job of the same name leaves it by itself."""
    owners, labels = found["metadata"].get("ownerReferences", []), found["metadata"].get("labels", {})
    owned = any((owner["kind"], owner["name"]) == (TRAINING_JOBS.kind, seen.name) for owner in owners)
    ours = (labels.get(MANAGED_BY_LABEL), labels.get(JOB_LABEL)) == (MANAGER, seen.name)
    # The garbage collector takes the gone job from the owners of a NetworkPolicy that stays with a pod. What has no
    # owner at all, after `kubectl delete --cascade=orphan`, goes with nothing.
    if owned or (ours and owners):
        return "it is of an earlier job of this name, and goes with it; the job waits for that"
    if "deletionTimestamp" in found["metadata"]:
        return "it is being deleted, and the job waits for that"
    return "rename one of the two"
