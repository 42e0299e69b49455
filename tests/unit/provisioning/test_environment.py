"""What a kernel may know: names and values that look like secrets stay here, everything else goes along."""

from __future__ import annotations

import pytest

from kernelexec.config import Environment
from kernelexec.provisioning.launch.environment import looks_secret, scrub_environment

HELD_NAMES = """
    API_KEY APIKEY OPENAI_API_KEY ANTHROPIC_API_KEY openai_api_key OpenAI_Api_Key MYAPIKEY API_KEY_2 GOOGLE_APIKEY
    AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY AWS_SESSION_TOKEN AZURE_CLIENT_SECRET DJANGO_SECRET_KEY SECRET CLIENTSECRET SECRET_2
    TOKEN GITHUB_TOKEN GH_TOKEN HF_TOKEN GITLAB_TOKEN NPM_TOKEN TOKEN_FILE ACCESSTOKEN TOKEN2 npm_config_authToken
    PASSWORD PASSWD PGPASSWORD DB_PASSWORD MYSQL_ROOT_PASSWORD SUDO_PASSWD password DBPASSWORD PASSWORD_HASH
    DB_PASS SMTP_PASS MYSQL_PWD DB_PWD
    GPG_PASSPHRASE GOOGLE_APPLICATION_CREDENTIALS CREDENTIAL PRIVATE_KEY SSH_PRIVATE_KEY PRIVATEKEY RSA_KEY
    BASIC_AUTH AUTH NPM_CONFIG__AUTH DOCKER_AUTH_CONFIG COOKIE SESSION_COOKIE SESSION_KEY SESSION_ID SIGNING_KEY ENCRYPTION_KEY
    SENTRY_DSN SLACK_WEBHOOK_URL CI_JOB_JWT BEARER AZURE_PAT PWD_HASH
"""
PLAIN_NAMES = """
    PATH HOME PWD OLDPWD USER SHELL LANG LC_ALL TZ TERM HOSTNAME TMPDIR EDITOR DISPLAY PYTHONPATH VIRTUAL_ENV
    CUDA_VISIBLE_DEVICES OMP_NUM_THREADS KEYBOARD KEYBOARD_LAYOUT KEYMAP MONKEY TURKEY MONKEY_PATCH AUTHOR GIT_AUTHOR_NAME
    AUTHORITY XAUTHORITY TOKENIZERS_PARALLELISM TOKENIZER MAX_TOKENS SECRETARY PASSAGE PASSIVE COMPASS BYPASS PATTERN PATIENT
    COOKIECUTTER_CONFIG CREDENTIALISM SESSION SESSION_MANAGER DBUS_SESSION_BUS_ADDRESS DSNAME JWTS_OFF BEARERS
    NODE_PATH LD_LIBRARY_PATH HTTP_PROXY no_proxy PKG_CONFIG_PATH COLORTERM HF_HOME KERAS_BACKEND
"""
OURS = """
    SSH_AUTH_SOCK GPG_AGENT_INFO DOCKER_HOST JPY_PARENT_PID JPY_SESSION_NAME PYTHONSTARTUP
    PYTEST_CURRENT_TEST COVERAGE_PROCESS_START COVERAGE_PROCESS_CONFIG FASTMCP_ENV_FILE
"""
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789" * 2
KEY_BLOCK = "-----BEGIN {}PRIVATE KEY{}-----\nMIIE\n-----END {}PRIVATE KEY{}-----\n"
SECRET_VALUES: dict[str, str] = {
    "openai": f"sk-{LETTERS[:40]}",
    "openai of a project": f"sk-proj-{LETTERS[:20]}_{LETTERS[:9]}",
    "anthropic": f"sk-ant-api03-{LETTERS[:40]}",
    "stripe": f"sk_live_{LETTERS[:24]}",
    "stripe, restricted": f"rk_live_{LETTERS[:24]}",
    "github": f"ghp_{LETTERS[:36]}",
    "github server": f"ghs_{LETTERS[:36]}",
    "github, fine-grained": f"github_pat_{LETTERS[:40]}",
    "gitlab": f"glpat-{LETTERS[:20]}",
    "slack": f"xoxb-{LETTERS[:24]}",
    "aws": "AKIA" + "ABCDEFGH01234567",
    "hugging face": f"hf_{LETTERS[:34]}",
    "a signed token": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl",
    "a key": KEY_BLOCK.format(*[""] * 4),
    "an rsa key": KEY_BLOCK.format("RSA ", "", "RSA ", ""),
    "an openssh key": "text before\n" + KEY_BLOCK.format("OPENSSH ", "", "OPENSSH ", ""),
    "a pgp key": KEY_BLOCK.format("PGP ", " BLOCK", "PGP ", " BLOCK"),
    "postgres": "postgresql://user:pass@host:5432/db",
    "postgres with a driver": "postgresql+asyncpg://user:p%40ss@host/db?ssl=1",
    "mongo": "mongodb+srv://user:pass@cluster.example.net/?retryWrites=true",
    "redis without a user": "redis://:pass@host:6379/0",
    "a proxy": "http://user:pass@proxy:8080",
    "an index": "https://__token__:pypi-AgEI@example.org/simple",
    "one of several urls": "https://example.org https://user:pass@example.org",
    "a url within a setting": "url=amqp://guest:guest@queue/",
    "a token for a user": f"https://ghp_{LETTERS[:36]}@github.com/owner/name.git",
    "a connection string": f"DefaultEndpointsProtocol=https;AccountName=a;AccountKey={LETTERS[:40]}==;EndpointSuffix=core",
}
PLAIN_VALUES: dict[str, str] = {
    "nothing": "",
    "a flag": "1",
    "a path": "/usr/local/bin:/usr/bin:/root/.local/bin",
    "a url": "https://example.org/path?q=1",
    "a url with a port": "http://proxy:8080",
    "a url with a user": "ssh://git@example.org/owner/name.git",
    "a url with an at sign in its path": "https://example.org:443/@scope/name",
    "a url with a colon in its path": "https://example.org/a:b@c",
    "a database without a password": "postgresql://host:5432/db",
    "a socket": "unix:path=/run/user/0/bus",
    "a mail address": "user:someone@example.org",
    "a short word": "sk-short",
    "a word that begins like a key": "skeleton-abcdefghijklmnopqrstuvwxyz",
    "a sentence": "the sk-ip of a task is a task-abcdefghijklmnopqrstuvwxyz",
    "a public key": "-----BEGIN PUBLIC KEY-----\nMIIB\n-----END PUBLIC KEY-----",
    "a certificate": "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----",
    "a package": "hf_transfer",
    "a digest": "d" * 64,
    "colours": "rs=0:di=01;34:ln=01;36:*.tar=01;31",
    "unicode": "\u65e5\u672c\U0001f389",
    "lines": "one\ntwo\n",
}


@pytest.mark.parametrize("name", HELD_NAMES.split())
def test_a_name_that_looks_like_a_secret_stays(name: str) -> None:
    assert scrub_environment(Environment(), {name: "1", "KEPT": "1"}) == {"KEPT": "1"}


@pytest.mark.parametrize("name", PLAIN_NAMES.split())
def test_a_plain_name_goes_along(name: str) -> None:
    assert scrub_environment(Environment(), {name: "1"}) == {name: "1"}


@pytest.mark.parametrize("value", SECRET_VALUES.values(), ids=SECRET_VALUES)
def test_a_value_that_looks_like_a_secret_stays(value: str) -> None:
    assert scrub_environment(Environment(), {"PLAIN": value, "KEPT": "1"}) == {"KEPT": "1"}


@pytest.mark.parametrize("value", PLAIN_VALUES.values(), ids=PLAIN_VALUES)
def test_a_plain_value_goes_along(value: str) -> None:
    assert scrub_environment(Environment(), {"PLAIN": value}) == {"PLAIN": value}


@pytest.mark.parametrize("name", OURS.split())
def test_handles_into_this_process_stay(name: str) -> None:
    assert scrub_environment(Environment(), {name: "1"}) == {}


def test_either_the_name_or_the_value_is_enough() -> None:
    secret = SECRET_VALUES["openai"]
    actual = [looks_secret(name, value) for name in ("PLAIN", "TOKEN") for value in ("1", secret)]
    assert actual == [False, True, True, True]


@pytest.mark.parametrize(
    ("name", "value"),
    [("TOKEN", "1"), ("PLAIN", SECRET_VALUES["postgres"]), ("SSH_AUTH_SOCK", "/run/agent"), ("HOME", "/root")],
)
def test_a_variable_that_is_named_goes_along_whatever_it_looks_like(name: str, value: str) -> None:
    assert scrub_environment(Environment(pass_names=(name,)), {name: value, "OTHER_TOKEN": "1"}) == {name: value}


@pytest.mark.parametrize("named", ["token", "TOKE", "TOKENS", "*", "", "OKEN"])
def test_a_name_counts_in_full_only(named: str) -> None:
    assert scrub_environment(Environment(pass_names=(named,)), {"TOKEN": "1"}) == {}


def test_a_named_variable_that_is_not_there_is_not_made() -> None:
    assert scrub_environment(Environment(pass_names=("TOKEN",)), {}) == {}


def test_set_variables_override_all_others_and_all_rules() -> None:
    rules = Environment(pass_names=("A_TOKEN",), set={"A_TOKEN": "set", "PATH": "/bin", "B_TOKEN": "2", "SSH_AUTH_SOCK": "/s"})
    actual = scrub_environment(rules, {"A_TOKEN": "1", "PATH": "/usr/bin", "B_TOKEN": "1", "HOME": "/root"})
    assert actual == {"A_TOKEN": "set", "PATH": "/bin", "B_TOKEN": "2", "SSH_AUTH_SOCK": "/s", "HOME": "/root"}


def test_the_environment_of_the_process_is_read_and_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KX_PLAIN", "1")
    monkeypatch.setenv("KX_TOKEN", "1")
    actual = scrub_environment(Environment(set={"KX_PLAIN": "2"}))
    assert actual["KX_PLAIN"] == "2"
    assert "KX_TOKEN" not in actual
    again = scrub_environment(Environment(pass_names=("KX_TOKEN",)))
    assert (again["KX_PLAIN"], again["KX_TOKEN"]) == ("1", "1")
