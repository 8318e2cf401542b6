"""What is passed on names nobody and gives no access, and still says what a report is for."""

from __future__ import annotations

from pathlib import PureWindowsPath

import pytest

from modules.session import redaction
from modules.session.redaction import redact

HEX = "0123456789abcdef" * 4
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.SflKxwRJSMeKKF2QT4fwpM"
PEM = "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXk=\nAAAA\n-----END OPENSSH PRIVATE KEY-----"
PRESIGNED = "https://host/a?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AKI%2F2026%2Fs3&X-Amz-Expires=3600"

# What comes before and after a secret stays.
SECRETS = [
    ("token hf_abcdefghijklmnop seen", "token <secret> seen"),
    ("at https://discord.com/api/webhooks/123/aB-c_d. Then", "at <secret>. Then"),
    ("https://hooks.slack.com/services/T0/B0/xyz https://ntfy.sh/x7Kq", "<secret> <secret>"),
    ("glpat-abcdefghijklmnopqrst.", "<secret>."),
    ("ghp_0123456789abcdef, gho_0123456789abcdef", "<secret>, <secret>"),
    ("github_pat_0123456789_abc", "<secret>"),
    ("AIzaSyA0123456789abcdefghijklmnopqrstuv", "<secret>"),
    ("AKIAIOSFODNN7EXAMPLE and ASIAIOSFODNN7EXAMPLE", "<secret> and <secret>"),
    (f"sent {JWT}", "sent <secret>"),
    (f"before\n{PEM}\nafter", "before\n<secret>\nafter"),
    (repr(PEM), "'<secret>'"),
    ("-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG==", "<secret>"),
    ("HF_TOKEN=abc123 x", "HF_TOKEN=<secret> x"),
    ("hf_token_write: 'abc'", "hf_token_write: '<secret>'"),
    ('{"api_key": "s3cr3t"}', '{"api_key": "<secret>"}'),
    ("aws_secret_access_key = wJalrXUtn/bPx", "aws_secret_access_key = <secret>"),
    ("pw=geheim;", "pw=<secret>;"),
    ("db_pw: geheim", "db_pw: <secret>"),
    ("pwd=geheim", "pwd=<secret>"),
    ("password=1x passwd: 2y passphrase='3z'", "password=<secret> passwd: <secret> passphrase='<secret>'"),
    ("train.py --token abc123 --config a.yaml", "train.py --token <secret> --config a.yaml"),
    ("--hf-token=abc123 --password 'abc'", "--hf-token=<secret> --password '<secret>'"),
    ("['--api-key', 'abc123', '--seed', '1']", "['--api-key', '<secret>', '--seed', '1']"),
    ("https://me:pw@host/x", "https://<secret>@host/x"),
    ("https://tok3n@host/x", "https://<secret>@host/x"),
    ("Authorization: Bearer abcdef.ghijkl", "Authorization: Bearer <secret>"),
    ("'authorization': 'Basic YTpi'", "'authorization': 'Basic <secret>'"),
    ("bearer abcd1234", "bearer <secret>"),
    ("Cookie: session=1; id=2\nnext", "Cookie: <secret>\nnext"),
    (
        f"{PRESIGNED}&X-Amz-Signature={HEX}&x-id=GetObject",
        PRESIGNED.replace("AKI%2F2026%2Fs3", "<secret>") + "&X-Amz-Signature=<secret>&x-id=GetObject",
    ),
    ("https://a/b?se=2026-01-01&sig=a%2Fb%3D&sv=2", "https://a/b?se=2026-01-01&sig=<secret>&sv=2"),
    ("/f?Expires=1&Signature=a~b-c&Key-Pair-Id=K2X for", "/f?Expires=1&Signature=<secret>&Key-Pair-Id=<secret> for"),
]
PEOPLE = [
    ("mail a.b@example.org", "mail <mail>"),
    ("at 10.1.2.3:12355, not 127.0.0.1 or 0.0.0.0", "at <address>:12355, not 127.0.0.1 or 0.0.0.0"),
    ("at [2001:db8::1]:12355, not [::1]:12355", "at [<address>]:12355, not [::1]:12355"),
    ("fe80::1ff:fe23:4567:890a%eth0.", "<address>."),
    ("fd12:3456:789a:1::1 and 2001:0db8:0000:0000:0000:ff00:0042:8329", "<address> and <address>"),
    ("::ffff:10.1.2.3", "<address>"),
    ("link/ether 02:42:ac:11:00:02 brd", "link/ether <address> brd"),
    ("02-42-AC-11-00-02", "<address>"),
    ("/home/jane/pictures", "/home/<user>/pictures"),
    (r"C:\Users\jane\pictures", r"C:\Users\<user>\pictures"),
    (r"C:\Users\Jane Doe\run: full", r"C:\Users\<user>\run: full"),
    (r"'C:\\Users\\Jane Doe\\run'", r"'C:\\Users\\<user>\\run'"),
    ("c:/users/Jane O'Hara/run", "c:/users/<user>/run"),
    (r"C:\Users\jane is full", r"C:\Users\<user> is full"),
    (r"C:\Documents and Settings\jane\run", r"C:\Documents and Settings\<user>\run"),
    (r"D:\OneDrive - Example Ltd\run", r"D:\OneDrive - <company>\run"),
    (r"\\janes-pc\photos\cat.png", r"\\<machine>\<drive>\cat.png"),
    (r"'\\\\janes-pc\\my photos\\cat.png'", r"'\\\\<machine>\\<drive>\\cat.png'"),
    ("/mnt/jane/run and '/mnt/jane'", "/mnt/<drive>/run and '/mnt/<drive>'"),
    ("/mnt/c/Users/jane/run", "/mnt/c/Users/<user>/run"),
    ("/media/jane/My Disk/run", "/media/<user>/<drive>/run"),
    ("/run/media/jane/Disk is full", "/run/media/<user>/<drive> is full"),
    ("/Volumes/Jane's Disk/run", "/Volumes/<drive>/run"),
    ("/Volumes/Disk and /tmp", "/Volumes/<drive> and /tmp"),
]
KEPT = [
    "torch 2.13.0+cu130 at step 1,000, driver 580.65.06",
    "nvidia-cublas-cu12==12.8.4.1, cuDNN 9.10.2.21, version 1.2.3.4, pkg-1.2.3.4",
    "2026-11-26 12:30:45, 12:30:45.123, 1:02:03:04, 24-11-26-10-30-45",
    f"sha256 {HEX}, {HEX[:40]}",
    "a::b, std::abort(), c10::Error, at::add, dead::beef, cafe::f00",
    "GPU 00000000:01:00.0, NVLink, 0000:81:00.0",
    "model.base: resources/demo, optimizer.learning_rate=1e-4, data.keep_tokens=2, max_tokens: 77",
    "CLIPTokenizer, tokenizer: CLIPTokenizer, pad_token_id=1, pad_token='!', token_ids: 3, eos_token: </s>",
    "hf_transfer 0.1.9, hf_hub_download(token=None), use_auth_token=False",
    "basic settings, the bearer is missing, a secret agent",
    "PWD=/opt/chorus, pwd: ~/x, --max-tokens 77, --token --config",
    "signature=inspect.signature(function)",
    "diffusers@0.36.0, a@b",
    "https://host/media/a/b, https://host/mnt/x/y, resources/media/x",
    r"re.compile('\\d+\\w'), \\?\C:\run, \\.\PhysicalDrive0, C:\run",
    "port 12355, 4.10 s, 1920x1080, -1:-1, x[2:4], {'a': 1}",
]


@pytest.mark.parametrize(("text", "expected"), [*SECRETS, *PEOPLE])
def test_secrets_and_names_are_left_out(text, expected):
    assert redact(text) == expected
    assert redact(f"a line\n{text}\nanother") == f"a line\n{expected}\nanother"


@pytest.mark.parametrize("text", KEPT)
def test_the_rest_stays(text):
    assert redact(text) == text


def test_what_was_redacted_stays_as_it_is():
    text = "\n".join(expected for _, expected in (*SECRETS, *PEOPLE))
    assert redact(text) == text


def test_the_names_of_the_user_and_the_machine_are_left_out(monkeypatch):
    monkeypatch.setattr(redaction.getpass, "getuser", lambda: "janedoe")
    monkeypatch.setattr(redaction.socket, "gethostname", lambda: "janes-pc")
    assert redact("janedoe on janes-pc") == "<user> on <machine>"


@pytest.mark.parametrize(
    "path",
    [r"C:\Users\Jane Doe\run", r"c:\users\jane doe\run", r"C:\\Users\\Jane Doe\\run", "C:/Users/Jane Doe/run"],
)
def test_the_home_folder_of_windows_is_known_however_it_is_written(path, monkeypatch):
    monkeypatch.setattr(redaction.Path, "home", lambda: PureWindowsPath(r"C:\Users\Jane Doe"))
    assert redact(f"in {path}").startswith("in ~")


def test_a_user_whom_the_system_can_not_name_stops_no_report(monkeypatch):
    def getuser():
        raise ModuleNotFoundError("No module named 'pwd'")

    monkeypatch.setattr(redaction.getpass, "getuser", getuser)
    assert redact("text") == "text"
