"""The job file as types: closed, frozen, strict models, one for every section.

They say what a file may contain; `job/rules.py` says which values go together, and `job/load.py` reads a file.
"""

from shardwise.job.quantity import Duration, Quantity
from shardwise.job.spec.base import FilledFrom, SpecModel, Unit
from shardwise.job.spec.data import Data, Source
from shardwise.job.spec.job import Hardware, JobSpec, Metadata, TrainingJob
from shardwise.job.spec.model import Dropout, Model, PresetName
from shardwise.job.spec.optimizer import Optimizer, OptimizerName, Schedule
from shardwise.job.spec.pod import (
    EnvSource,
    EnvVariable,
    ImagePullSecret,
    NamedReference,
    Pod,
    Resources,
    Toleration,
)
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
from shardwise.job.spec.volumes import (
    ClaimVolume,
    ConfigMapVolume,
    CsiVolume,
    EmptyDirVolume,
    SecretVolume,
    Volume,
    VolumeMount,
)

__all__ = [
    "BadSteps",
    "Batch",
    "Checkpoint",
    "ClaimVolume",
    "ConfigMapVolume",
    "CsiVolume",
    "Data",
    "Dropout",
    "Duration",
    "EmptyDirVolume",
    "EnvSource",
    "EnvVariable",
    "Evaluation",
    "FilledFrom",
    "Hardware",
    "ImagePullSecret",
    "JobSpec",
    "Keep",
    "Loss",
    "Mesh",
    "Metadata",
    "Model",
    "NamedReference",
    "Optimizer",
    "OptimizerName",
    "Pod",
    "Precision",
    "PresetName",
    "Quantity",
    "Recovery",
    "Resources",
    "Restarts",
    "Schedule",
    "SecretVolume",
    "Source",
    "SpecModel",
    "Toleration",
    "Tracking",
    "Training",
    "TrainingJob",
    "Unit",
    "Volume",
    "VolumeMount",
]
