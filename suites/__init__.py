"""Suites that come with attnbench, `attnbench sweep NAME`, and the studies made of some, `attnbench study NAME`."""
