"""The toy state of the tests of checkpoints."""

from tests.train.checkpoint.conftest import toy

__all__ = ["toy"]
