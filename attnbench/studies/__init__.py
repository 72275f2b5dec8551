"""Questions asked with a suite of runs: claims that the runs can test, figures, and a page. One module each, which
defines STUDY; `registry` lists them.
"""
