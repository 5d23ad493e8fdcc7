"""Studies: reading study files, the steps of a run, and the run folder."""
