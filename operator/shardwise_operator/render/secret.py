"""The Secret of a job: the gang's token, which never leaves the pods, and the status token, which the operator has too.

Both follow from the operator's key and the job's UID, so nothing has to be read back: the operator may create Secrets,
and may not read them.
"""

import hmac
from dataclasses import dataclass, field
from typing import Any

from shardwise.protocol.pods import GANG_TOKEN_KEY, STATUS_TOKEN_KEY
from shardwise_operator.observe.observed import Observed
from shardwise_operator.render.names import metadata, secret_name
from shardwise_operator.runtime.kinds import SECRETS


@dataclass(frozen=True)
class Tokens:
    """The tokens of every job, from the operator's key."""

    key: bytes = field(repr=False)

    def gang(self, uid: str) -> str:
        """What opens Ray and the gang of the job with this UID."""
        return self._token(f"gang/{uid}")

    def status(self, uid: str) -> str:
        """What opens the status of the job with this UID."""
        return self._token(f"status/{uid}")

    def _token(self, what: str) -> str:
        return hmac.digest(self.key, what.encode(), "sha256").hex()


def secret_manifest(seen: Observed, tokens: Tokens) -> dict[str, Any]:
    """The Secret, immutable."""
    data = {GANG_TOKEN_KEY: tokens.gang(seen.uid), STATUS_TOKEN_KEY: tokens.status(seen.uid)}
    return SECRETS.manifest(metadata(seen, secret_name(seen.name, seen.uid)), immutable=True, stringData=data)
