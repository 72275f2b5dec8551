"""The conformance kit: what every mechanism owes, checked from outside, for mechanisms of anybody.

`runner.CHECKS` holds the checks by name; `runner.examine(reference)` gives their outcomes. The command is
`attnbench check`, the pytest form `attnbench.testing.conformance`; docs/checks.md documents both.
"""
