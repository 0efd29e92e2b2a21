"""Types of conditions, reasons and causes of loss, as statuses and events have them.

They are part of the API: people, alerts and `kubectl wait` read them. docs/events.md has each of them, with what to do.
"""

from collections.abc import Mapping
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
FEWER_SLICES = "FewerSlices"  # of a job with recovery.minSlices: it runs without those that cannot be had

CONDITIONS = (
    *(COMPLETE, FAILED, SUSPENDED, READY, STALLED, RECONCILING, SCHEDULED, NOTICE_TOO_SHORT, FITS, ADMITTED),
    FEWER_SLICES,
)

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
SAVE_FAILED = "SaveFailed"  # the run goes on without, as long as there is an older checkpoint
REPLACED = "PodReplaced"
NODE_AVOIDED = "NodeAvoided"  # a host or a slice has lost two pods in one place, and goes to another
RELOCATED = "Relocated"  # its place is gone, or no other place took it and it may go back
LEAVING = "NodeLeaving"  # a node is about to be taken down; a save was asked for
PODS_RELEASED = "PodsReleased"  # not all pods ran within startWithin, or a lost one was not back within replaceWithin
SLICES_LEFT_OUT = "SlicesLeftOut"  # slices were waited for in vain, and the run goes on without them
SLICES_BACK = "SlicesBack"  # slices that were left out are there again; the run saves, and goes on with them
ALL_THERE = "AllThere"  # no slice is left out any more
DEADLINE = "DeadlineExceeded"
SAVED_UNEXPECTEDLY = "SavedUnexpectedly"  # the run was saved and stopped, though the operator has not asked for it
TRAINED = "Trained"
EXPIRED = "Expired"
NOTICE_LONG_ENOUGH = "NoticeLongEnough"

# Reasons of a run that has failed, by its exit code or its cause.
BAD_INPUT = "BadInput"
NON_FINITE = "NonFinite"
OUT_OF_MEMORY = "OutOfMemory"
STORAGE = "Storage"
DEVICE = "Device"
FAILURE = "Failure"
HANG = "Hang"
HOST_LOST = "HostLost"

# What host 0 reports of a run, beside Running and Stalled.
WAITING = "Waiting"  # for hosts
STARTING = "Starting"
RECOVERING = "Recovering"
STOPPING = "Stopping"
DONE = "Done"

EventType = Literal["Normal", "Warning"]
_NORMAL = (
    *(QUEUED, ADMITTED, WAITING_FOR_SLICE, PLACED, STARTED, RUNNING, RECOVERED, SAVED),
    SLICES_BACK,
    *(EVICTED, SUSPEND_ASKED, SUSPENDED, RESUMED, COMPLETE, EXPIRED),
)
_WARNINGS = (
    *(INVALID, NOT_FITTING, PREFLIGHT_FAILED, NAME_CONFLICT, QUOTA, REFUSED, NOT_STARTED, UNSCHEDULABLE, IMAGE),
    *(CONTAINER, STALLED, SAVE_FAILED, NOTICE_TOO_SHORT, LEAVING, REPLACED, RESTARTED, NODE_AVOIDED, RELOCATED),
    *(
        SLICES_LEFT_OUT,
        PODS_RELEASED,
        SAVED_UNEXPECTEDLY,
        DEADLINE,
        BAD_INPUT,
        NON_FINITE,
        OUT_OF_MEMORY,
        STORAGE,
        DEVICE,
        FAILURE,
    ),
    *(HANG, HOST_LOST),
)
EVENTS: Mapping[str, EventType] = {**dict.fromkeys(_NORMAL, "Normal"), **dict.fromkeys(_WARNINGS, "Warning")}
"""The type of each Event, by its reason. All others are reasons of conditions alone."""


def event_type(reason: str) -> EventType:
    """Return the type of an Event; of a cause of failure that only a run's own image knows, a warning."""
    return EVENTS.get(reason, "Warning")


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
