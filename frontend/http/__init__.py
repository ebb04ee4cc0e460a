"""OpenAI's HTTP API: routes, what may be asked, what is answered. Each request is a client of the frontend's core."""
