"""Readers of manifests and data folders, one small file per format, and which of them reads what."""
