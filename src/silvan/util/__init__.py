"""Small tools that know nothing of trees: files, threads, databases of our own, numbers in words."""
