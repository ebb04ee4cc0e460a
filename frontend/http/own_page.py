"""Who may change something by a POST without a body: any page of any site may send one, to any server."""

from __future__ import annotations

from starlette.requests import Request

from frontend.http.errors import ApiError

_OWN_PAGES = ("none", "same-origin")
"""What a browser says of who asks (Sec-Fetch-Site): the user, or a page of this server."""


def check_own_page(request: Request, what: str) -> None:
    """Raise `ApiError` if another site's page asks; `what` pages of other sites may not do is for people.

    Browsers name the asker's site only to servers with TLS or on this machine, but to all of them the page's origin.
    Other programs say neither.
    """
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if site is not None:
        own = site in _OWN_PAGES
    else:
        own = origin is None or origin.partition("://")[2].lower() == request.headers.get("host", "").lower()
    if not own:
        raise ApiError(403, f"pages of other sites may not {what}")
