"""The Kubernetes side of Shardwise: reads TrainingJob objects and keeps their pods alive.

It knows the shared language `shardwise.job` and nothing else of the trainer: no JAX, no Ray.
The controller arrives in a later release; this version only reserves the distribution and its place in the layering.
"""

from importlib.metadata import version

__version__ = version("shardwise-operator")
