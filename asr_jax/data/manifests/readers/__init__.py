"""Readers of manifests and data folders, one file per format."""
