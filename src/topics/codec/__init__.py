"""Bytes on disk: every format in one place (FORMAT.md), as batch functions without I/O or state."""
