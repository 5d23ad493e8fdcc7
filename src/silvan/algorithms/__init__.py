"""The algorithms of the publications, one folder per family; ``federation/handlers.py`` lists what sites answer."""
