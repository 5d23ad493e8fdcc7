"""Who may see the page, and which headers every response carries."""

import pytest
from helpers.browsing import ADDRESS, client_of, form_of, open_page

from silvan.errors import InputError
from silvan.web.access import HEADERS
from silvan.web.app import listen
from silvan.web.pages import Page


class Nothing:
    """A folder with one page and one action, which counts."""

    name = "nothing"
    links = (("/", "Here"),)

    def __init__(self):
        self.done = 0

    def page(self, path):
        if path == "broken":
            raise KeyError("a value")
        return Page("Here", "base.html.jinja", {}) if path == "" else None

    def file(self, path):
        return None

    def state(self):
        return None

    def act(self, form):
        self.done += 1
        return "Done."

    def actions(self):
        return {"count": self.act}


@pytest.fixture
def folder():
    return Nothing()


def test_the_token_is_exchanged_once_for_a_cookie(folder):
    client, access = client_of(folder)
    answer = client.get(f"/?token={access.token}&x=1")
    assert (answer.status_code, answer.headers["location"]) == (303, "/?x=1")
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert access.token not in answer.headers["location"]
    assert client.get("/").status_code == 200


def test_the_opened_address_works_once(folder):
    client, access = client_of(folder)
    address = access.address_once.partition("/?")[2]
    assert access.token not in address
    assert client.get(f"/?{address}").status_code == 303
    assert client.get("/").status_code == 200
    client.cookies.clear()
    assert client.get(f"/?{address}").status_code == 401


@pytest.mark.parametrize("path", ["/", "/?token=", "/?token=wrong", "/live/", "/studies/x", "/?token=%C3%BC%00"])
def test_without_the_token(folder, path):
    client, _ = client_of(folder)
    answer = client.get(path)
    assert answer.status_code == 401
    assert "Open the address" in answer.text
    assert "set-cookie" not in answer.headers
    assert client.post("/act/count", data={}).status_code == 401
    assert folder.done == 0


def test_a_wrong_cookie_gives_no_access(folder):
    client, access = client_of(folder)
    for value in ("", "x", form_of(access), access.token[:-1]):
        assert client.get("/", headers={"cookie": f"{access.cookie}={value}"}).status_code == 401
    odd = f'other={{"x": 1}}; bad[name]=2; {access.cookie}={access.token}'  # of other programs on this machine
    assert client.get("/", headers={"cookie": odd}).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8100", "127.0.0.1", "127.0.0.1:81", "127.0.0.1.nip.io:8100"]
)
def test_other_names_of_this_machine_open_nothing(folder, host):
    """A name that resolves to this machine, as in DNS rebinding, is not the page's."""
    client, access = open_page(folder)
    answer = client.get("/", headers={"host": host})
    assert answer.status_code == 421
    assert client.get(f"/?token={access.token}", headers={"host": host}).status_code == 421
    assert client.get("/", headers={"host": "LOCALHOST:8100"}).status_code == 200


def test_headers_of_every_response(folder):
    client, _ = open_page(folder)
    for path in ("/", "/none", "/broken", "/static/live.css", "/static/none", "/?token=x"):
        headers = client.get(path).headers
        for name, value in HEADERS.items():
            assert headers[name] == value, path
    assert "unsafe" not in HEADERS["Content-Security-Policy"]
    assert "script-src 'self';" in HEADERS["Content-Security-Policy"]


def test_a_form_of_another_page_does_nothing(folder):
    client, access = open_page(folder)
    form = {"form": form_of(access), "back": "/"}
    for headers in ({"origin": "http://evil.example"}, {"origin": "null"}, {"origin": "http://127.0.0.1:9999"}):
        assert client.post("/act/count", data=form, headers=headers).status_code == 403
    for wrong in ({}, {"form": ""}, {"form": access.token}, {"form": "\ud83d"}):
        data = {name: value.encode("utf-8", "surrogatepass") for name, value in wrong.items()}
        assert client.post("/act/count", data=data).status_code == 403
    assert client.get("/act/count").status_code in (404, 405)
    assert folder.done == 0
    answer = client.post("/act/count", data=form, headers={"origin": ADDRESS})
    assert answer.status_code == 303
    assert folder.done == 1
    assert "Done." in client.get(answer.headers["location"]).text
    assert client.post("/act/other", data=form).status_code == 404
    assert client.post("/act/count", data={**form, "x": "x" * 30_000}).status_code == 413


@pytest.mark.parametrize("back", ["//evil.example", "/\\evil.example", "http://evil.example", "/x\r\nset-cookie: a=b"])
def test_redirects_stay_on_this_machine(folder, back):
    client, access = open_page(folder)
    where = client.post("/act/count", data={"form": form_of(access), "back": back}).headers["location"]
    assert where.startswith("/")
    assert not where.startswith(("//", "/\\"))
    assert "\n" not in where
    where = client.get(f"//evil.example/?token={access.token}").headers["location"]
    assert not where.startswith("//")


def test_internal_errors_show_no_values(folder):
    client, _ = open_page(folder)
    answer = client.get("/broken")
    assert answer.status_code == 500
    assert "KeyError" in answer.text
    assert "a value" not in answer.text


def test_all_addresses_at_once_are_refused():
    for host in ("0.0.0.0", "::", ""):  # noqa: S104
        with pytest.raises(InputError, match="host must be one address"), listen(host, 0):
            pass
    with listen("127.0.0.1", 0) as one:
        assert one.getsockname()[0] == "127.0.0.1"
        with pytest.raises(InputError, match="cannot be used"), listen("127.0.0.1", one.getsockname()[1]):
            pass
