"""Running a federation: processes, supervision of studies, status, checks and backups."""
