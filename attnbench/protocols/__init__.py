"""Protocols as data: one TOML file each, read by `attnbench.protocol`."""
