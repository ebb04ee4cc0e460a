"""The GPU worker: weights, paged KV, sampling, and the pipeline that keeps one batch queued behind the running one."""
