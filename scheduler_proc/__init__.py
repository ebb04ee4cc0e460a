"""The scheduler: a pure core that decides what runs next, and a thin process around it. No torch."""
