"""How agents know each other's words: signed with the gang's token, which itself never travels.

The address of a host 0 that is gone may be another pod's by now. Such a pod learns nothing from a poll, and cannot
answer one. Used by `client.py` and `server.py`.
"""

import hmac


def poll_signature(token: str, poll: bytes) -> str:
    """Of what a follower says; its nonce makes it another one each time."""
    return hmac.new(token.encode(), b"poll\n" + poll, "sha256").hexdigest()


def answer_signature(token: str, poll_signature: str, answer: bytes) -> str:
    """Of the leader's answer to that poll and no other."""
    return hmac.new(token.encode(), f"answer\n{poll_signature}\n".encode() + answer, "sha256").hexdigest()


def same(given: str, expected: str) -> bool:
    """Whether two signatures are, in a time that does not say where they differ."""
    return hmac.compare_digest(given.encode("utf-8", "replace"), expected.encode())
