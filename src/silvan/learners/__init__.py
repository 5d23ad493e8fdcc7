"""Learners that are fitted on federations, with scikit-learn's conventions for parameters and fitted attributes."""
