"""Passwords and tokens in commands of a shell, as agents send them in the arguments of tools."""

import json
import shlex
from collections.abc import Callable

import pytest

from calls.redaction.redactor import Redactor, redact_whole_body
from calls.redaction.rules.secret_names import SECRET_NAMES
from tests.calls.secrets import KEY

REDACTOR = Redactor(key=KEY)
TOKEN, ENCODED = "hX7qP2vKmZ9rTw4b", "bWU6aHVudGVyMi1sb25nZXI="

COMMANDS = (
    f"npm config set _auth {ENCODED}",
    f"npm config set //reg.example.com/:_auth {ENCODED}",
    f"npm config set '//reg.example.com/:_auth' '{ENCODED}'",
    f"npm set //reg.example.com/:_authToken {TOKEN}",
    f"pnpm config set //reg.example.com/:_password {ENCODED}",
    f"yarn config set npmAuthToken {TOKEN}",
    f"yarn config set npmAuthIdent me:{TOKEN}",
    f"poetry config pypi-token.pypi {TOKEN}",
    f"pip config set global.index-url https://me:{TOKEN}@pypi.example.com/simple",
    f"git config --global credential.helper '!f() {{ echo password={TOKEN}; }}; f'",
    f"git config http.extraheader 'AUTHORIZATION: basic {ENCODED}'",
    f"git clone https://me:{TOKEN}@github.com/me/it",
    f"docker login -u me -p {TOKEN} registry.example.com",
    f"docker login -u me -p='{TOKEN}'",
    f"docker login --username me --password {TOKEN}",
    f"podman login -p{TOKEN} -u me quay.io",
    f"helm registry login -u me -p {TOKEN} reg.example.com",
    f"az login --service-principal -u 0f8fad5b-d9cb-469f-a165-70867728950e -p {TOKEN} --tenant t",
    f"gh secret set API --body {TOKEN}",
    f"aws configure set aws_secret_access_key {TOKEN}",
    f"aws configure set profile.x.aws_session_token {TOKEN}",
    f"rclone config create x s3 secret_access_key {TOKEN}",
    f"kubectl config set-credentials me --token={TOKEN}",
    f"kubectl config set-credentials me --token {TOKEN}",
    f"kubectl config set-credentials me --username=me --password={TOKEN}",
    f"curl -u me:{TOKEN} https://example.com",
    f"curl -sSu 'me:{TOKEN}' https://example.com",
    f"curl -U me:{TOKEN} https://example.com",
    f"curl --user me:{TOKEN} https://example.com",
    f"curl --oauth2-bearer {TOKEN} https://example.com",
    f"curl 'https://example.com/?a=1&b=2' -u me:{TOKEN}",
    f"curl -H 'Accept: a;q=1' -u me:{TOKEN} https://example.com",
    f"fetch http://example.com -u me:{TOKEN}",
    f"http -a me:{TOKEN} example.com",
    f"sshpass -p '{TOKEN}' ssh -p 2222 me@example.com",
    f"twine upload -u __token__ -p {TOKEN} dist/x.whl",
    f"mongosh -u me -p {TOKEN} db",
    f"mongosh 'mongodb://h/?a=1&b=2' -u me -p {TOKEN}",
    f"redis-cli -h cache -a {TOKEN} ping",
    f"ldapsearch -D cn=me -w {TOKEN} -x",
    f"dotnet nuget push x.nupkg -k {TOKEN}",
    f"fly auth login -t {TOKEN}",
    f"openssl rsa -passin pass:{TOKEN} -in key",
)
AS_LINES = (
    f"curl https://example.com \\\n  -H 'Accept: */*' \\\n  -u me:{TOKEN}",
    f"docker login \\\r\n  -u me -p {TOKEN}",
    f"echo -n {TOKEN} | docker login -u me --password-stdin",
    f"echo -n '{TOKEN}' | gh auth login --with-token",
    f"printf %s {TOKEN} | docker login -u me --password-stdin",
    f"printf '%s' \"{TOKEN}\" | docker login -u me --password-stdin",
    f"printf '%s\\n' '{TOKEN}' | docker login -u me --password-stdin",
    f"echo {TOKEN} | docker login -u me --password-stdin",
    f"echo '{TOKEN}' | gh auth login --with-token",
    f'printf "{TOKEN}" | npx wrangler secret put API',
    f"gh auth login --with-token <<< {TOKEN}",
    f"vault login {TOKEN}",
    f"poetry config http-basic.mine me {TOKEN}",
)


def line(command: str) -> str:
    return json.dumps({"command": command})


def words(command: str) -> str:
    return json.dumps({"command": shlex.split(command)})


def within_json(form: Callable[[str], str]) -> Callable[[str], str]:
    return lambda command: json.dumps({"arguments": form(command)})


FORMS = {
    "text": lambda command: command,
    "json": line,
    "json in json": within_json(line),
    "words": words,
    "words in json": within_json(words),
}


def redact(text: str, media: str) -> str:
    new, _, _ = REDACTOR.redact_body(text.encode(), media)
    assert REDACTOR.redact_body(new, media) == (new, 0, False)
    assert len(new) == len(text)
    return new.decode()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("command", [*COMMANDS, *AS_LINES])
def test_a_secret_in_a_command_is_replaced(command: str, form: str) -> None:
    if form.startswith("words") and command in AS_LINES:
        return
    new = redact(FORMS[form](command), "text/plain" if form == "text" else "application/json")
    assert TOKEN not in new
    assert ENCODED not in new
    assert new != FORMS[form](command)
    if form != "text":
        json.loads(new)


@pytest.mark.parametrize("size", [1, 7, 16, 64, 100])
@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize(
    "command",
    [
        *COMMANDS,
        *AS_LINES,
        f"echo {TOKEN} | docker --config {'a' * 60} login",
        f"curl \\\n-u me:{TOKEN}\n-u me:{TOKEN}",
    ],
)
def test_pieces_of_a_body_do_not_matter(command: str, form: str, size: int) -> None:
    data, media = FORMS[form](command).encode(), "text/plain" if form == "text" else "application/json"
    body = REDACTOR.new_body_redactor(media)
    pieces = [piece for at in range(0, len(data), size) for piece in body.feed(data[at : at + size], at)]
    assert (
        b"".join(piece.data for piece in (*pieces, *body.finish()))
        == redact_whole_body(REDACTOR.new_body_redactor(media), data)[0]
    )


@pytest.mark.parametrize("size", [1, 7, 16])
@pytest.mark.parametrize("command", [COMMANDS[0], COMMANDS[12], COMMANDS[19], COMMANDS[25], AS_LINES[0]])
def test_a_secret_in_a_command_that_a_model_spells_out_is_replaced(command: str, size: int) -> None:
    pieces = [command[at : at + size] for at in range(0, len(command), size)]
    events = [json.dumps({"choices": [{"index": 0, "delta": {"content": piece}}]}) for piece in pieces]
    new = redact("".join(f"data: {event}\n\n" for event in events), "text/event-stream")
    said = "".join(json.loads(part[6:])["choices"][0]["delta"]["content"] for part in new.split("\n\n") if part)
    assert len(said) == len(command)
    assert TOKEN not in said
    assert ENCODED not in said


@pytest.mark.parametrize(
    "text",
    [
        "npm config set registry https://registry.npmjs.org/",
        "npm config set _auth VALUE",
        "npm config set _auth $NPM_AUTH",
        "npm config get _auth, then set _authToken anew",
        "pip config set global.index-url https://pypi.org/simple",
        "git config credential.helper store",
        "git config --global user.name Ada2Lovelace",
        "docker run -p 8080:80 -u 1000:1000 image1",
        "docker login; docker run -p 8080:80 image1",
        "docker login\ndocker run -p 127.0.0.1:8080:80/tcp image1",
        "docker login -u me -p $TOKEN && docker run -p 8080:80 image1",
        "docker login -u me -p PASSWORD",
        "docker login -u me --password-stdin registry1.example.com",
        "cat token1.txt | docker login -u me --password-stdin",
        "echo $TOKEN1 | docker login -u me --password-stdin",
        "echo deadbeef12 | grep login1",
        "gh auth login --with-token < token1.txt",
        "az login --tenant 0f8fad5b-d9cb-469f-a165-70867728950e",
        "az vm list -p 20",
        "aws configure set region eu-central-1",
        "aws configure set aws_secret_access_key <your-key-1>",
        "kubectl config set-context dev1 --namespace=team1",
        "kubectl get pods -w -l app=web1",
        "curl -u $USER:$PASSWORD https://example.com",
        "chown -u me:group1 file1",
        "ssh -p 2222 me@host1",
        "mkdir -p a1/b2/c3d4e5f6",
        "set the api key in settings1 before you config it",
        "tar -a -k -w file1234567",
        "login to the page -p 12",
    ],
)
@pytest.mark.parametrize("form", ["text", "json"])
def test_what_only_looks_like_it_is_left_as_it_is(text: str, form: str) -> None:
    text = FORMS[form](text)
    assert redact(text, "text/plain" if form == "text" else "application/json") == text


@pytest.mark.parametrize("joint", ["_", "-", "", " "])
@pytest.mark.parametrize("name", [name for name in SECRET_NAMES if name != "password"])
def test_a_name_that_begins_like_a_token_is_still_a_name(name: str, joint: str) -> None:
    name = name.replace("~", joint)
    for text in (f'{{"{name}": "{TOKEN}"}}', f'{{"{name.upper()}": "{TOKEN}"}}', f"{name}: {TOKEN}\n"):
        assert TOKEN not in redact(text, "application/json")
