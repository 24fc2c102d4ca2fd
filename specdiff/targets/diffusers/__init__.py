"""Checkpoints of the diffusers library, from a folder or from the hub."""
