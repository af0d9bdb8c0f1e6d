"""The engine: prefill, the decode step, the schedulers, and the thread that streams."""
