"""The process of a pod that holds a place for a slice. `python -m shardwise.launcher.placeholder`.

Where slices of a job cannot be had, the job goes on without them (`recovery.minSlices`), and the operator asks for
their nodes by pods that run this. It uses no device, and ends when its pod is told to go, which is when the slice is
taken in or the node is needed otherwise.
"""

import signal

from shardwise.launcher.system.consoles import consoles

_ENDS = (signal.SIGTERM, signal.SIGINT)


def main() -> None:
    """Wait to be told to go."""
    # Blocked before anything else: the kernel gives a first process no signal that it neither blocks nor handles.
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDS)
    console, _ = consoles()
    console.print("this pod holds a place for a slice of its job, and trains nothing")
    signal.sigwait(_ENDS)


if __name__ == "__main__":
    main()
