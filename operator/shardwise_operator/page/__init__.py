"""The page of all jobs: one HTML file with a table of them, from what the operator has in its cache.

`read_jobs.py` reads the jobs into a `JobsDocument`, `jobs.html` shows it, and `serve.py` hands it to who has the token.
"""
