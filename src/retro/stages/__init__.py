"""What every stage stands on: its folder, the parts it has finished, where it runs, and its progress."""
