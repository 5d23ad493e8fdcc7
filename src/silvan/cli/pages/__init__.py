"""Commands that show a folder as pages in a browser."""
