"""Write: carry out a plan, write the status, send the events."""
