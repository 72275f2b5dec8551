"""What a report looks like: LaTeX, one HTML page, plots, values of the literature. Reads records, runs nothing."""
