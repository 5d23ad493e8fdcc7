"""What several algorithm families use: shared bins, checked requests, admission of trees."""
