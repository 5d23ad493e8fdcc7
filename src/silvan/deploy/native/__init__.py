"""Studies inside a FLARE federation that others have set up, by FLARE's own provisioning."""
