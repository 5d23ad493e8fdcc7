"""Studies: the study file, its values, the steps of a run, and the folder that a run leaves."""
