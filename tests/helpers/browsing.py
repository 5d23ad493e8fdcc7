"""The live page in this process, requested as a browser does."""

from starlette.testclient import TestClient

from silvan.web.access import Access
from silvan.web.app import make_app

PORT = 8100
ADDRESS = f"http://127.0.0.1:{PORT}"


def client_of(folder):
    """Returns a client without a token, and the token that it would need."""
    access = Access(PORT)
    client = TestClient(
        make_app(folder, access), base_url=ADDRESS, follow_redirects=False, raise_server_exceptions=False
    )
    return client, access


def open_page(folder):
    """Returns a client that has the token, and that token."""
    client, access = client_of(folder)
    assert client.get(f"/?token={access.token}").status_code == 303
    return client, access


def form_of(access):
    """Returns the form fields of the person who started the page."""
    return access.form_token(access.starter)


def act(client, access, action, **fields):
    """Sends a form; returns the next page."""
    answer = client.post(f"/act/{action}", data={"form": form_of(access), "back": "/", **fields})
    assert answer.status_code == 303, answer.text
    return client.get(answer.headers["location"]).text
