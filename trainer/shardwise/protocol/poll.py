"""What a follower's agent tells the leader's several times a second, and what it is answered.

Both are signed (`launcher/agent/signature.py`): the address of a lost host 0 may be another pod's by now.
"""

from shardwise.protocol.message import Message


class Poll(Message):
    """A follower is there, and would join the Ray session.

    `run` names one life of the command, or one round of a job; `sees` is the agent that the follower takes for the
    leader. `pod_attempt` counts the agents that the host had before, if that is known. `address` is the host's ip.
    `leaving` says that the host is about to go away; `stuck` why it can start no trainer, "" if it can. `ray_session`
    is the session that its Ray node belongs to. `nonce` makes each poll another one, so no answer fits two.
    """

    run: str
    host: int
    agent_id: str
    address: str
    sees: str = ""
    pod_attempt: int = 0
    leaving: bool = False
    stuck: str = ""
    ray_session: int | None = None
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
