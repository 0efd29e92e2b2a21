"""The job file as types: closed, frozen, strict models, one for every section.

They say what a file may contain; `job/rules.py` says which values go together, and `job/load.py` reads a file.
"""

from shardwise.job.quantity import Duration
from shardwise.job.spec.base import FilledFrom, SpecModel, Unit
from shardwise.job.spec.data import Data, Source
from shardwise.job.spec.job import Hardware, JobSpec, Metadata, TrainingJob
from shardwise.job.spec.model import Dropout, Model, PresetName
from shardwise.job.spec.optimizer import Optimizer, OptimizerName, Schedule
from shardwise.job.spec.recovery import Recovery, Restarts
from shardwise.job.spec.training import (
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
    "Batch",
    "Checkpoint",
    "Data",
    "Dropout",
    "Duration",
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
    "Precision",
    "PresetName",
    "Recovery",
    "Restarts",
    "Schedule",
    "Source",
    "SpecModel",
    "Tracking",
    "Training",
    "TrainingJob",
    "Unit",
]
