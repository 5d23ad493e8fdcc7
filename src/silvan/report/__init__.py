"""What a run leaves on disk, and the page made of it."""
