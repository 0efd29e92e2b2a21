"""The Kubernetes operator of Shardwise: it reads TrainingJob objects and keeps their pods alive.

    main -> controller: one pass over one job -> observe -> decide -> write
    render: the objects of a job            api: the CRDs and the admission policies
    runtime: watches, cache, work queue, leader election; it knows nothing of jobs

Of Shardwise it knows the job file (`shardwise.job`) and what processes exchange (`shardwise.protocol`): no JAX, no Ray.
"""

from importlib.metadata import version

__version__ = version("shardwise-operator")
