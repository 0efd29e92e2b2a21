"""What processes send to each other and leave for each other: messages, exit codes, records, errors, file names."""
