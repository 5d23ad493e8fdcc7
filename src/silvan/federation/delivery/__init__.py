"""Messages to sites with the blobs that these lack, and what they answered."""
