"""What each trainer writes: one small module a format, and `table`, which says how each is recognised."""
