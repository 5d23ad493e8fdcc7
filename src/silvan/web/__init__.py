"""The live page of a folder, ``silvan web``: studies, progress, what left, approvals, results, start and stop."""
