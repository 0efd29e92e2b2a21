"""A tag may move while a job runs: what the first pods of a round were made of, its later pods are made of too.

A node says what it runs as repository and digest where it fetched the image; one that was loaded has no digest that
another node could fetch, and stays as it was named.
"""

import re

from shardwise_operator.observed import Observed

_NAMED = re.compile(r"(?P<repository>.+?)(:[^:/]+)?")
_FETCHED = re.compile(r"(.+://)?(?P<repository>[^@]+)@(?P<digest>sha256:[0-9a-f]{64})")
_IMPLIED = ("", "docker.io/", "docker.io/library/")


def image(seen: Observed) -> str:
    """The round's image by its digest; "" while no pod has it, or where its name stays."""
    if seen.state.image:
        return seen.state.image
    assert seen.made_of is not None
    asked = seen.made_of.pod
    if (
        asked.image is None or "@" in asked.image or asked.image_pull_policy == "Never"
    ):  # which is by name, node by node
        return ""
    named = _NAMED.fullmatch(asked.image)
    assert named is not None
    repository = named["repository"]
    for pod in seen.current_pods():
        fetched = _FETCHED.fullmatch(pod.image_id)
        if fetched and fetched["repository"] in [implied + repository for implied in _IMPLIED]:
            return f"{repository}@{fetched['digest']}"
    return ""
