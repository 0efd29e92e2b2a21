"""The page of a run: one HTML file with its curves, its time, its hosts, checkpoints and logs.

`gather.py` reads a run directory into a `PageDocument`, `render.py` puts that into `page.html`. Neither imports JAX, so
the command (`cli/page.py`) and the leader of a live run (`launcher/leader/page.py`) make the same page. What other
pages share with it, as the operator's of all jobs does, is in `common.css`, `common.js`, `render.py` and `form.py`.
"""
