"""Federations of machines: invitations, certificates, processes, and studies that continue after failures."""
