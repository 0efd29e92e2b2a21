"""The words that status and events are written in: types of conditions, reasons, causes.

Written by the policies and `status.py`; people, alerts and `kubectl wait` read them, so a word that is published stays.
"""

from enum import StrEnum

# Types of conditions.
COMPLETE = "Complete"
FAILED = "Failed"
SUSPENDED = "Suspended"
READY = "Ready"
STALLED = "Stalled"
SCHEDULED = "Scheduled"
NOTICE_TOO_SHORT = "NoticeTooShort"
FITS = "Fits"

TRUE, FALSE, UNKNOWN = "True", "False", "Unknown"

# Why a job is where it is: reasons of conditions, of events, and the REASON column.
INVALID = "Invalid"  # the job does not go with its class; the message says what was expected
NAME_CONFLICT = "NameConflict"  # an object of somebody else has a name that the job needs
PLANNING = "Planning"  # a pod plans the job, before any other is made
FITTING = "Fitting"  # the plan says that the job fits
NOT_FITTING = "NotFitting"  # the plan says that it does not; the message has the figures and what would help
MEMORY_UNKNOWN = "MemoryUnknown"  # the class does not say how much memory there is, so the plan cannot tell
PREFLIGHT_FAILED = "PreflightFailed"  # the plan came to no verdict
QUOTA = "QuotaExceeded"  # the API server refused a pod
REFUSED = "Refused"  # the API server refused an object for another reason
SCHEDULING = "Scheduling"  # not every pod has a node yet
UNSCHEDULABLE = "Unschedulable"  # the scheduler finds none; the message has its words
SLICE_WAITS = "SliceWaits"  # the slice's first host has no place yet
IMAGE = "ImagePull"
CONTAINER = "ContainerStart"
PLACED = "Placed"
BACKOFF = "Backoff"
ENDING = "PodEnding"  # a lost pod still ends
NO_WORD = "NoWord"  # host 0 has not answered for a while
SAVING = "Saving"  # a save was asked for
NOT_ASKED = "NotAsked"
SUSPEND_ASKED = "SuspendAsked"
RESUMED = "Resumed"
STARTED = "Started"
RUNNING = "Running"  # the first step of a start is taken
RECOVERED = "Recovered"  # the first step after a restart
RESTARTED = "Restarted"  # the launcher has started the trainers again
SAVED = "Saved"
REPLACED = "PodReplaced"
AVOIDED = "PlaceAvoided"  # a host or a slice has lost two pods in one place, and goes to another
PLACED_ANEW = "PlacedAnew"  # its place is gone, or there is none but the one that it left
LEAVING = "NodeLeaving"  # a node is about to be taken down; a save was asked for
GIVEN_BACK = "GivenBack"  # not all pods ran within startWithin, or a lost one was not back within replaceWithin
DEADLINE = "DeadlineExceeded"
SAVED_UNASKED = "SavedUnasked"  # the run was stopped from inside
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
    HOST_LOST = "hostLost"  # no pod, but the run: its launcher has waited for a host in vain
