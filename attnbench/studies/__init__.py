"""How a question is asked with a suite of runs: arms, estimates, findings, figures, a page. The studies themselves lie
beside their suites.
"""
