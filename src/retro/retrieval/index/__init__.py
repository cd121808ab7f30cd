"""Indexes: the nearest keys of a segment, exactly or nearly, behind one protocol."""
