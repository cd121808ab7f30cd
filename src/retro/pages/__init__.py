"""What people look at: one shell, one style, and plain JSON of everything a page shows."""
