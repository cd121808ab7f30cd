"""Planning a study of anybody's text: what the text is, how fast the machine is, and what follows from
the two and the minutes that are given."""
