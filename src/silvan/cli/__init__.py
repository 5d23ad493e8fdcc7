"""The command line: one file for each command; heavy imports are inside the commands, so that help is quick."""
