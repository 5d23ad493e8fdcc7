"""How bytes get to sites and back: in one process, or over NVIDIA FLARE."""
