"""Named people: each has a token and a right, and their actions are recorded by name; also behind a reverse proxy."""

import json
import stat

import pytest
from helpers.runs import silvan, write_study
from starlette.testclient import TestClient

from silvan.errors import InputError
from silvan.web.access import Access, Root
from silvan.web.app import make_app
from silvan.web.pages import Page
from silvan.web.people import PEOPLE, People

PUBLIC = "https://apps.example.org"


class Counting:
    """A folder with a page, and an action that records who did it."""

    name = "counting"
    links = (("/", "Here"), ("/more", "More"))

    def __init__(self):
        self.by = []

    def page(self, path):
        return Page("Here", "base.html.jinja", {}) if path in ("", "more") else None

    def file(self, path):
        return None

    def state(self):
        return None

    def actions(self):
        return {"count": lambda form: self.by.append(form["by"]) or "Done."}


@pytest.fixture
def people(tmp_path):
    return People(tmp_path)


def client_for(folder, people, root=Root(), base="http://127.0.0.1:8100"):  # noqa: B008
    access = Access(8100, people=people, starter="owner", root=root)
    app = make_app(folder, access)
    return TestClient(app, base_url=base, follow_redirects=False, raise_server_exceptions=False), access


def act(client, access, person, **headers):
    form = {"form": access.form_token(person), "back": "/", "by": "somebody else"}
    return client.post("/act/count", data=form, headers=headers)


def test_only_digests_of_tokens_are_kept(people, tmp_path):
    token = people.add("Anna Ådal", "view")
    path = tmp_path / PEOPLE
    assert token not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert people.by_token(token).name == "Anna Ådal"
    assert people.by_token(json.loads(path.read_text())["people"][0]["token"]) is None


@pytest.mark.parametrize(
    ("name", "right"), [("", "view"), (" a", "view"), ("a\nb", "view"), ("x" * 70, "view"), ("a", "x")]
)
def test_invalid_names_and_rights(people, name, right):
    with pytest.raises(InputError, match=r"name must be a person's|right must be one of view, approve, proxy"):
        people.add(name, right)


def test_approvers_act_by_name(people):
    folder = Counting()
    client, access = client_for(folder, people)
    assert client.get(f"/?token={people.add('anna', 'approve')}").status_code == 303
    assert "anna" in client.get("/").text
    assert act(client, access, people.by_name("anna")).status_code == 303
    assert folder.by == ["anna"]  # not who the form says


def test_viewers_learn_why_nothing_happens(people):
    folder = Counting()
    client, access = client_for(folder, people)
    client.get(f"/?token={people.add('bert', 'view')}")
    assert "bert</bdi> (view only)" in client.get("/").text
    refused = act(client, access, people.by_name("bert"))
    assert refused.status_code == 403
    assert "bert may only view this page; ask its owner for a token with the right to approve" in refused.text
    assert folder.by == []


def test_a_form_of_one_person_does_nothing_for_another(people):
    folder = Counting()
    client, access = client_for(folder, people)
    client.get(f"/?token={people.add('anna', 'approve')}")
    people.add("carl", "approve")
    assert act(client, access, people.by_name("carl")).status_code == 403
    assert folder.by == []


def test_a_person_who_was_removed_is_out_at_once(people):
    client, _ = client_for(Counting(), people)
    client.get(f"/?token={people.add('anna', 'approve')}")
    assert client.get("/").status_code == 200
    people.add("anna", "view")  # another token: the first one is no longer valid
    assert client.get("/").status_code == 401
    people.remove("anna")
    with pytest.raises(InputError, match="there is nobody called 'anna'"):
        people.remove("anna")


# -- behind a reverse proxy


def test_a_proxy_identifies_users(people):
    """By its own token and a documented header; the header alone has no effect."""
    folder = Counting()
    client, access = client_for(folder, people)
    proxy = {"authorization": f"Bearer {people.add('sign-on', 'proxy')}"}
    people.add("anna", "approve")
    assert client.get("/", headers={"x-remote-user": "anna"}).status_code == 401
    wrong = {"authorization": "Bearer wrong", "x-remote-user": "anna"}
    assert client.get("/", headers=wrong).status_code == 403
    unknown = client.get("/", headers={**proxy, "x-remote-user": "zoe"})
    assert unknown.status_code == 403
    assert "You are signed on, but this page does not know you" in unknown.text
    assert client.get("/", headers={**proxy, "x-remote-user": "sign-on"}).status_code == 403
    assert act(client, access, people.by_name("anna"), **proxy, **{"x-remote-user": "anna"}).status_code == 303
    assert folder.by == ["anna"]


def test_tokens_of_persons_and_proxies_are_not_interchangeable(people):
    client, _ = client_for(Counting(), people)
    person, proxy = people.add("anna", "approve"), people.add("sign-on", "proxy")
    assert client.get(f"/?token={proxy}").status_code == 401
    assert client.get("/", headers={"cookie": f"silvan_8100={proxy}"}).status_code == 401
    headers = {"authorization": f"Bearer {person}", "x-remote-user": "anna"}
    assert client.get("/", headers=headers).status_code == 403


@pytest.mark.parametrize("strips", [True, False])
def test_a_page_below_a_path_of_another_server(people, strips):
    """Links, forms, redirects and the cookie are below the path, whether or not the proxy strips it."""
    folder, root = Counting(), Root.parse(f"{PUBLIC}/north/")
    client, access = client_for(folder, people, root, PUBLIC)
    before = "" if strips else "/north"
    assert access.address.startswith("https://apps.example.org/north/?token=")
    opened = client.get(f"{before}/more?token={access.token}")
    assert opened.headers["location"] == "/north/more"
    assert "Path=/north" in opened.headers["set-cookie"]
    assert "Secure" in opened.headers["set-cookie"]
    client.cookies.set(access.cookie, access.token)
    text = client.get(f"{before}/more").text
    for link in ('href="/north/static/live.css"', 'src="/north/static/live.js"', 'href="/north/more"'):
        assert link in text
    assert 'hx-sse:connect="/north/live/more"' in text
    assert '="/static' not in text
    assert client.get(f"{before}/static/live.css").status_code == 200
    form = {"form": access.form_token(access.starter), "back": "/more"}
    done = client.post(f"{before}/act/count", data=form, headers={"origin": PUBLIC})
    assert done.headers["location"].startswith("/north/more?notice=")
    assert client.post(f"{before}/act/count", data=form, headers={"origin": "https://evil.example"}).status_code == 403
    assert client.get(f"{before}/more", headers={"host": "evil.example"}).status_code == 421
    assert folder.by == ["owner"]


@pytest.mark.parametrize("text", ["north", "ftp://a/b", "https:///north", "//a/b", "/a?b", "/a//b", "https://u@h/a"])
def test_invalid_proxy_paths(text):
    with pytest.raises(InputError, match="root-path must be a path such as /north"):
        Root.parse(text)


def test_people_are_added_and_removed_on_the_command_line(tmp_path, monkeypatch):
    monkeypatch.setattr("silvan.web.app.serve", lambda app, listener: pytest.fail("it serves"))
    write_study(tmp_path)
    said = silvan("web", tmp_path, "--add", "anna", "--right", "approve", "--root-path", f"{PUBLIC}/north").output
    token = said.split("https://apps.example.org/north/?token=")[1].split()[0]
    assert People(tmp_path).by_token(token).right == "approve"
    assert "Authorization: Bearer" in silvan("web", tmp_path, "--add", "sign-on", "--right", "proxy").output
    silvan("web", tmp_path, "--remove", "anna")
    assert [person.name for person in People(tmp_path).listed()] == ["sign-on"]
    wrong = silvan("web", tmp_path, "--add", "anna", "--right", "all", ok=False).stderr
    assert "right must be one of view, approve, proxy" in wrong
