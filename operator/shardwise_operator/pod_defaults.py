"""What a platform team gives to the pods of every job; a job's own template goes over it.

It is taken into the snapshot of a round, like the job and its class: a change of it changes no running job.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from shardwise.job.spec.base import Label, MarkKey
from shardwise.job.spec.pod import LabelValue, Pod
from shardwise.protocol.strict_model import StrictModel
from shardwise.protocol.text import first_of
