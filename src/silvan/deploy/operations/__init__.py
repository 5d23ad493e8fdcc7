"""What keeps a folder in order: checks, status, figures for monitoring, removal of what is old."""
