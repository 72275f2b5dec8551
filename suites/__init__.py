"""Suites that come with attnbench: `attnbench sweep NAME`."""
