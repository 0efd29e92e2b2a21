"""Pin the image of a round by its digest: a tag may move, and later pods must run what the first ones run.

A node reports repository and digest of an image that it has pulled. An image that was loaded by hand has no digest that
another node could pull, so it stays as it was named.
"""

import re
from dataclasses import replace

from shardwise_operator.decide.plan import Plan, never
from shardwise_operator.observe.observed import Observed

_NAMED = re.compile(r"(?P<repository>.+?)(:[^:/]+)?")
_FETCHED = re.compile(r"(.+://)?(?P<repository>[^@]+)@(?P<digest>sha256:[0-9a-f]{64})")
_IMPLIED = ("", "docker.io/", "docker.io/library/")

wake = never


def decide(seen: Observed, _now: float) -> Plan:
    """Write the round's image into the state once a pod reports it."""
    return Plan(state=replace(seen.state, image=image(seen)))


def image(seen: Observed) -> str:
    """Return the round's image by its digest; "" while no pod has it, or if it keeps its name."""
    if seen.state.image:
        return seen.state.image
    asked = seen.round_snapshot.pod
    by_name = asked.agent.get("imagePullPolicy") == "Never"  # node by node
    if asked.image is None or "@" in asked.image or by_name:
        return ""
    named = _NAMED.fullmatch(asked.image)
    assert named is not None
    repository = named["repository"]
    for pod in seen.current_pods():
        fetched = _FETCHED.fullmatch(pod.image_id)
        if fetched and fetched["repository"] in [implied + repository for implied in _IMPLIED]:
            return f"{repository}@{fetched['digest']}"
    return ""
