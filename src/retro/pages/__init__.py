"""The HTML pages: one shell, one style, and everything a page shows as plain JSON."""
