"""Text beside what it shares with its neighbours: what samples and evaluations show alike."""
