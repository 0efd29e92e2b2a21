"""What the launcher needs of the operating system: processes, ports, growing files, memory and processor time."""
