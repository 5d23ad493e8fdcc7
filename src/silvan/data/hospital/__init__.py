"""Tables of persons from hospitals' own data: a cohort and covariates, over an OMOP database or FHIR files."""
