"""Types of conditions, reasons and causes of loss, as statuses and events have them.

They are part of the API: people, alerts and `kubectl wait` read them.
"""

from enum import StrEnum
from typing import Final, Literal

# Types of conditions.
COMPLETE = "Complete"
FAILED = "Failed"
SUSPENDED = "Suspended"
READY = "Ready"
STALLED = "Stalled"
RECONCILING = "Reconciling"  # the operator still brings the job on
SCHEDULED = "Scheduled"
NOTICE_TOO_SHORT = "NoticeTooShort"
FITS = "Fits"
ADMITTED = "Admitted"  # its queue has; of a job with a queue

ConditionStatus = Literal["True", "False", "Unknown"]
TRUE: Final = "True"
FALSE: Final = "False"
UNKNOWN: Final = "Unknown"

# Reasons of conditions and events, and of the REASON column.
INVALID = "Invalid"  # the job does not go with its class; the message says what was expected
NAME_CONFLICT = "NameConflict"  # an object that is not the job's has a name that the job needs
PLANNING = "Planning"  # a pod plans the job before any other is created
FITTING = "Fitting"  # the plan says that the job fits
NOT_FITTING = "NotFitting"  # the plan says that it does not; the message has the figures and what would help
MEMORY_UNKNOWN = "MemoryUnknown"  # the class does not give the memory of a device, so the plan has no verdict
PREFLIGHT_FAILED = "PreflightFailed"  # the plan came to no verdict
QUOTA = "QuotaExceeded"  # the API server refused a pod
REFUSED = "Refused"  # the API server refused an object for another reason
QUEUED = "Queued"  # its queue has not admitted it yet; the message is the queue's
EVICTED = "Evicted"  # its queue has taken the quota back; it saves, then waits to be admitted again
NOT_STARTED = "NotStarted"  # it holds quota, and not all pods run; after startWithin it gives that back
SCHEDULING = "Scheduling"  # not every pod has a node yet
UNSCHEDULABLE = "Unschedulable"  # no node fits; the message is the scheduler's
WAITING_FOR_SLICE = "WaitingForSlice"  # the slice's first host has no place yet
IMAGE = "ImagePull"
CONTAINER = "ContainerStart"
PLACED = "Placed"
BACKOFF = "Backoff"
ENDING = "PodEnding"  # a lost pod is still ending
UNREACHABLE = "Unreachable"  # host 0 has not answered for a while
SAVING = "Saving"  # a save was asked for
NOT_ASKED = "NotAsked"
SUSPEND_ASKED = "SuspendAsked"
RESUMED = "Resumed"
STARTED = "Started"
RUNNING = "Running"  # the first step of a start is taken
RECOVERED = "Recovered"  # the first step after a restart
RESTARTED = "Restarted"  # the leader has started the trainers again
SAVED = "Saved"
REPLACED = "PodReplaced"
NODE_AVOIDED = "NodeAvoided"  # a host or a slice has lost two pods in one place, and goes to another
RELOCATED = "Relocated"  # its place is gone, or no other place took it and it may go back
LEAVING = "NodeLeaving"  # a node is about to be taken down; a save was asked for
PODS_RELEASED = "PodsReleased"  # not all pods ran within startWithin, or a lost one was not back within replaceWithin
DEADLINE = "DeadlineExceeded"
SAVED_UNEXPECTEDLY = "SavedUnexpectedly"  # the run was saved and stopped, though the operator has not asked for it
TRAINED = "Trained"
EXPIRED = "Expired"


class Lost(StrEnum):
    """Why a pod ended that should not have; each has its own budget in `spec.recovery.restarts`."""

    EVICTION = "eviction"
    NODE_LOST = "nodeLost"
    MAINTENANCE = "maintenance"
    ADMISSION = "admission"
    IMAGE = "image"
    OUT_OF_MEMORY = "outOfMemory"
    UNKNOWN = "unknown"
    HOST_LOST = "hostLost"  # not a pod, but the run: its leader has waited for a host in vain
