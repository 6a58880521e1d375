"""Backups of a store, and stores made from them [S-319]."""
