"""The job file as types: closed, frozen, strict models, one for every section.

They say what a file may contain; `job/rules` says which values go together, and `job/load.py` reads a file.
"""

from shardwise.job.quantity import Duration, Quantity
from shardwise.job.spec.base import FilledFrom, Unit
from shardwise.job.spec.data import Data, Source
from shardwise.job.spec.job import Hardware, JobSpec, Metadata, TrainingJob
from shardwise.job.spec.model import Dropout, Model, PresetName, RopeScaling
from shardwise.job.spec.optimizer import Optimizer, OptimizerName, Schedule
from shardwise.job.spec.pod import EnvVariable, Pod, Toleration
from shardwise.job.spec.recovery import Recovery, Restarts
from shardwise.job.spec.training import (
    BadSteps,
    Batch,
    Checkpoint,
    Evaluation,
    Keep,
    Loss,
    Mesh,
    Precision,
    Tracking,
    Training,
)

__all__ = [
    "BadSteps",
    "Batch",
    "Checkpoint",
    "Data",
    "Dropout",
    "Duration",
    "EnvVariable",
    "Evaluation",
    "FilledFrom",
    "Hardware",
    "JobSpec",
    "Keep",
    "Loss",
    "Mesh",
    "Metadata",
    "Model",
    "Optimizer",
    "OptimizerName",
    "Pod",
    "Precision",
    "PresetName",
    "Quantity",
    "Recovery",
    "Restarts",
    "RopeScaling",
    "Schedule",
    "Source",
    "Toleration",
    "Tracking",
    "Training",
    "TrainingJob",
    "Unit",
]
