"""One file = one mechanism; the file's name is the mechanism's name."""
