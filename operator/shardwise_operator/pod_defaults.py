"""What a platform team gives to the pods of every job; a job's own template goes over it.

It is taken into the snapshot of a round, like the job and its class: a change of it changes no running job.
"""
