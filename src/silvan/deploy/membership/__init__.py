"""Members of a federation, and what each keeps on disk: keys, certificates, invitations, startup kits, site folders."""
