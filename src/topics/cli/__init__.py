"""The program `topics`, one module per group of commands."""
