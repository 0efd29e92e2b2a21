"""Signatures of polls and their answers, made with the gang's token, which itself never travels.

The address of a host 0 that is gone may be another pod's by now. Such a pod learns no secret from a poll, and cannot
answer one.
"""

import hmac


def poll_signature(token: str, poll: bytes) -> str:
    """Sign a follower's poll; its nonce makes the signature another one each time."""
    return hmac.new(token.encode(), b"poll\n" + poll, "sha256").hexdigest()


def answer_signature(token: str, poll_signature: str, answer: bytes) -> str:
    """Sign the leader's answer to that poll and no other."""
    return hmac.new(token.encode(), f"answer\n{poll_signature}\n".encode() + answer, "sha256").hexdigest()


def same(given: str, expected: str) -> bool:
    """Return whether two signatures are the same, in a time that does not depend on where they differ."""
    return hmac.compare_digest(given.encode("utf-8", "replace"), expected.encode())
