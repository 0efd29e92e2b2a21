"""A typed client for training jobs in a cluster: submit, watch, stop, read logs.

    from shardwise.client import Cluster

    job = Cluster(namespace="team").submit("job.yaml")
    for status in job.follow():
        print(status.phase, status.progress)
    print("".join(job.logs(host=0)))

It needs the extra `shardwise[cluster]`, and asks for what the person may do: nothing here has rights of its own.
"""

from shardwise.client.cluster import Cluster
from shardwise.client.job import ClusterJob, Job

__all__ = ["Cluster", "ClusterJob", "Job"]
