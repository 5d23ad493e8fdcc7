"""The attacks of an audit, one file each."""
