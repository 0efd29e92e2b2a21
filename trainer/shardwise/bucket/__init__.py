"""Small files in a folder or a bucket that several processes write to, and the lease that says which of them may.

`shardwise.train.checkpoint` keeps its checkpoints this way, and the launcher the run directory of a job without a
volume that all hosts share. It knows neither of them.
"""
