from __future__ import annotations

import os

import pytest

from modules.config.errors import UserError
from modules.session.redaction import redact
from modules.session.run_token import TOKEN_VARIABLE, is_signed, make_token_file, new_token, sign, token_of


def test_a_token_file_is_made_once_and_for_its_owner_only(tmp_path):
    path = tmp_path / "run.yaml.token"
    make_token_file(path)
    token = path.read_text()
    make_token_file(path)
    assert path.read_text() == token
    assert token_of({TOKEN_VARIABLE: token}) == token.strip().encode()
    if os.name == "posix":
        assert path.stat().st_mode & 0o777 == 0o600
        path.chmod(0o644)  # as after a copy
        make_token_file(path)
        assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("text", ["", "short\n", "two words of a text that is no token\n"])
def test_a_file_without_a_token_is_refused(text, tmp_path):
    path = tmp_path / "run.yaml.token"
    path.write_text(text)
    with pytest.raises(UserError, match="holds no token: delete it"):
        make_token_file(path)
    assert path.read_text() == text


def test_a_folder_that_takes_no_file_is_refused_in_one_sentence(tmp_path):
    with pytest.raises(UserError, match="can't be used"):
        make_token_file(tmp_path / "missing" / "run.yaml.token")


def test_a_token_that_could_be_guessed_is_refused_without_being_shown():
    with pytest.raises(UserError) as refusal:
        token_of({TOKEN_VARIABLE: "hunter2"})
    assert "7 characters" in str(refusal.value)
    assert "hunter2" not in str(refusal.value)
    assert token_of({TOKEN_VARIABLE: " \n"}) == token_of({}) == b""


def test_a_signature_holds_for_its_key_and_its_parts_only():
    signature = sign(b"key", b"ab", b"c")
    assert is_signed(signature, b"key", b"ab", b"c")
    assert is_signed(signature.encode(), b"key", b"ab", b"c")
    assert not is_signed(signature, b"key", b"a", b"bc")
    assert not is_signed(signature, b"other", b"ab", b"c")
    assert not is_signed("é", b"key", b"ab", b"c")


def test_a_token_is_redacted():
    token = new_token()
    assert token not in redact(f"{TOKEN_VARIABLE}={token}")
