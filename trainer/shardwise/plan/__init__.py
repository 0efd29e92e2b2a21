"""What a job would do on its hardware, by its compiler: does it fit, what moves, what binds. Needs no hardware."""
