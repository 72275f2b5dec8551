"""Speed and memory of mechanisms, measured so that a ratio can be believed; `docs/speed.md` says how.

`plan` decides what is measured, `measure` lets one `worker` process for each cell take turns, `work`, `clock`, `memory`,
`flops` and `selfcheck` are what happens there. `result` is what is stored; `fit`, `table`, `regression` and `benchmark`
read it and load no torch.
"""
