"""What is measured, and how: metrics, workloads, interleaved comparisons, counters, the floor, timelines."""
