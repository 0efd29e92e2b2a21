"""What a job would do on its hardware, said by its compiler: does it fit, what moves, what binds; without hardware."""
