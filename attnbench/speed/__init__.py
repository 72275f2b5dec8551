"""Speed and memory of mechanisms, measured so that a ratio can be believed; `docs/speed.md` says how.

`plan` decides what is measured, and `measure` lets the processes of cells take turns (`process`: its end of them,
`worker`: theirs). There `selfcheck` comes before anything is timed; `work` is a call, `clock`, `footprint` and `flops`
are what is taken of it. `result` is what is stored; `fit`, `figures`, `table`, `regression` and `benchmark` read it and
load no torch.
"""
