"""Scores that can be trusted: bits per byte, leakage, and the report that shows them."""
