"""The command line: a table of commands, each a small file over an importable function."""
