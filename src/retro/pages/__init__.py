"""What people look at: one shell, one style, and plain JSON of everything that a page shows."""
