"""One file = one task; the file's name is the task's name."""
