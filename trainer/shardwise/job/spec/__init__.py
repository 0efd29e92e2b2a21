"""The job file as types: closed, frozen, strict models, one for every section.

They say what a file may contain; `job/rules` says which values go together, and `job/load.py` reads a file.
"""

from shardwise.job.quantity import Duration
from shardwise.job.spec.base import FilledFrom, Unit
from shardwise.job.spec.experts import Experts
from shardwise.job.spec.job import Hardware, JobSpec, TrainingJob
from shardwise.job.spec.latent import Latent
from shardwise.job.spec.model import Model
from shardwise.job.spec.optimizer import Average, Optimizer, ParameterGroup, Schedule
from shardwise.job.spec.pod import Pod
from shardwise.job.spec.program import Program
from shardwise.job.spec.recovery import Recovery, Restarts
from shardwise.job.spec.rope_scaling import RopeScaling
from shardwise.job.spec.tracking import Profile
from shardwise.job.spec.training import BadSteps, Checkpoint, Keep, Mesh, Training

__all__ = [
    "Average",
    "BadSteps",
    "Checkpoint",
    "Duration",
    "Experts",
    "FilledFrom",
    "Hardware",
    "JobSpec",
    "Keep",
    "Latent",
    "Mesh",
    "Model",
    "Optimizer",
    "ParameterGroup",
    "Pod",
    "Profile",
    "Program",
    "Recovery",
    "Restarts",
    "RopeScaling",
    "Schedule",
    "Training",
    "TrainingJob",
    "Unit",
]
