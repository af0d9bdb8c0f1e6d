"""The paged KV cache: blocks, the prefix cache over them, and the staging buffers that carry tables to the device."""
