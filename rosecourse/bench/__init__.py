"""Measuring: what the metrics mean, what a workload is, and how results are shown and written down."""
