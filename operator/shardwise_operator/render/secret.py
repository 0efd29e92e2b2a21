"""The Secret of a job: the gang's token, which never leaves the pods, and the status token, which the operator has too.

Both follow from the operator's key and the job's UID, so nothing has to be read back: the operator may create Secrets,
and may not read them. A job keeps its Secret for life, so after the key is rotated its status token is still that of
the previous key.
"""

import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shardwise.protocol.pods import GANG_TOKEN_KEY, STATUS_TOKEN_KEY
from shardwise_operator.observe.observed import Observed
from shardwise_operator.render.names import metadata, secret_name
from shardwise_operator.runtime.kinds import SECRETS


@dataclass(frozen=True)
class Tokens:
    """The tokens of every job, from the operator's key; `previous` is the one before it, if jobs of that may live."""

    key: bytes = field(repr=False)
    previous: bytes | None = field(default=None, repr=False)

    def gang(self, uid: str) -> str:
        """Return what opens Ray and the gang of the job with this UID."""
        return _token(self.key, f"gang/{uid}")

    def status(self, uid: str) -> str:
        """Return what opens the status of a job with this UID whose Secret is made now."""
        return _token(self.key, f"status/{uid}")

    def statuses(self, uid: str) -> tuple[str, ...]:
        """Return what may open the status of the job with this UID, whichever key its Secret was made by."""
        return tuple(_token(key, f"status/{uid}") for key in (self.key, self.previous) if key)

    def seal(self, uid: str, round_: int, data: Mapping[str, str]) -> str:
        """Return the seal of what a round of the job with this UID is made of."""
        return _token(self.key, _sealed(uid, round_, data))

    def has_sealed(self, seal: str, uid: str, round_: int, data: Mapping[str, str]) -> bool:
        """Return whether a seal is this one, by either key."""
        made = [_token(key, _sealed(uid, round_, data)) for key in (self.key, self.previous) if key]
        return any(hmac.compare_digest(seal.encode(), one.encode()) for one in made)


def _sealed(uid: str, round_: int, data: Mapping[str, str]) -> str:
    return f"snapshot/{uid}/{round_}/{json.dumps(data, sort_keys=True)}"


def _token(key: bytes, what: str) -> str:
    return hmac.digest(key, what.encode(), "sha256").hex()


def secret_manifest(seen: Observed, tokens: Tokens) -> dict[str, Any]:
    """Return the Secret, immutable."""
    data = {GANG_TOKEN_KEY: tokens.gang(seen.uid), STATUS_TOKEN_KEY: tokens.status(seen.uid)}
    return SECRETS.manifest(metadata(seen, secret_name(seen.name, seen.uid)), immutable=True, stringData=data)
