"""What operators look at: checks of a folder, its status, figures for monitoring."""
