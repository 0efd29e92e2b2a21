"""What a follower's agent tells the leader's several times a second, and what it is answered.

Both are signed with the gang's token, which itself never travels. The address of a host 0 that is gone may be another
pod's by now: such a pod learns no secret from a poll, and cannot answer one.
"""

import hmac

from shardwise.protocol.message import Message
from shardwise.protocol.report import Exit

POLL_PATH = "/poll"
SIGNATURE = "Shardwise-Signature"  # the header


class Poll(Message):
    """A follower's sign of life, and its request to join the Ray session.

    `run` names one life of the command, or one round of a job; `sees` is the agent that the follower takes for the
    leader. `pod_attempt` counts the agents that the host had before, if that is known. `address` is the host's ip.
    `leaving` says that the host is about to go away; `stuck` why it can start no trainer, "" if it can. `ended` is how
    its last trainer ended, without the end of its log; None while one runs. `nonce` makes each poll another one, so no
    answer fits two.
    """

    run: str
    host: int
    agent_id: str
    address: str
    sees: str = ""
    pod_attempt: int = 0
    leaving: bool = False
    stuck: str = ""
    ended: Exit | None = None
    nonce: str = ""


class PollAnswer(Message):
    """What the follower is to do.

    `leader_id` is the leader's agent. `ray_address` is "" if the follower is to join no Ray session. `over` is the
    newest attempt that has ended, None before the first; `may_go` says that no attempt runs; `superseded` that the host
    has a later agent. `done` is the run's exit code once it has ended.
    """

    leader_id: str
    ray_session: int
    ray_address: str
    over: int | None
    may_go: bool
    superseded: bool
    done: int | None


def poll_signature(token: str, poll: bytes) -> str:
    """Sign a follower's poll; its nonce makes the signature another one each time."""
    return hmac.new(token.encode(), b"poll\n" + poll, "sha256").hexdigest()


def answer_signature(token: str, poll_signature: str, answer: bytes) -> str:
    """Sign the leader's answer to that poll and no other."""
    return hmac.new(token.encode(), f"answer\n{poll_signature}\n".encode() + answer, "sha256").hexdigest()


def same(given: str, expected: str) -> bool:
    """Return whether two signatures are the same, in a time that does not depend on where they differ."""
    return hmac.compare_digest(given.encode("utf-8", "replace"), expected.encode())
