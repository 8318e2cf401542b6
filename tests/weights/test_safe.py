"""Files in and out: a whole file is read as it was written, a bad one is explained, and no pickle runs code."""

import json
import pickle
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from modules.config.errors import UserError
from modules.weights import safe
from modules.weights.errors import WeightsError
from modules.weights.safe import (
    METADATA,
    check_pickle,
    load_finite,
    load_tensors,
    read_header,
    save_tensors,
    tensor_shapes,
)
from tests.support.planted_folders import Canary


def write_safetensors(path, header, data=b"", length=None):
    """A safetensors file by hand; header may be an object or the bytes themselves."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return path


def entry(begin=0, end=8, dtype="F32", shape=(2,)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.bool])
def test_what_is_saved_is_loaded_bit_for_bit(tmp_path, dtype):
    tensors = {"a": (torch.randn(3, 4) * 9).to(dtype), "empty": torch.zeros(0, 2, dtype=dtype)}
    tensors["scalar"] = torch.tensor(3).to(dtype)
    save_tensors(tmp_path / "new" / "x.safetensors", tensors, {"step": "7"})
    loaded = load_tensors(tmp_path / "new" / "x.safetensors")
    assert loaded.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert loaded[name].dtype == dtype
        assert torch.equal(loaded[name], tensor)
    header = read_header(tmp_path / "new" / "x.safetensors")
    assert header[METADATA] == {"format": "pt", "step": "7"}
    assert tensor_shapes(header) == {"a": (3, 4), "empty": (0, 2), "scalar": ()}


def test_tied_strided_and_sliced_tensors_are_saved(tmp_path):
    base = torch.randn(4, 6)
    tensors = {"base": base, "tied": base, "transposed": base.T, "slice": base[1:3], "row": base[0]}
    save_tensors(tmp_path / "x.safetensors", tensors)
    loaded = load_tensors(tmp_path / "x.safetensors")
    assert all(torch.equal(loaded[name], tensor) for name, tensor in tensors.items())


def test_only_the_wanted_tensors_are_loaded(tmp_path):
    save_tensors(tmp_path / "x.safetensors", {"a": torch.ones(2), "b": torch.zeros(3)})
    assert list(load_tensors(tmp_path / "x.safetensors", ["b"])) == ["b"]
    with pytest.raises(WeightsError, match="has no tensor 'c'"):
        load_tensors(tmp_path / "x.safetensors", ["c"])


def test_what_is_the_same_gives_the_same_bytes_and_its_metadata_comes_back(tmp_path):
    metadata = {"steps": "7", "family": "sd15", "ü": 'a "quoted" \\ line\nand \t\x01\x7f\u2028', "a": ""}
    for name, texts in {"x": metadata, "y": dict(reversed(metadata.items()))}.items():
        save_tensors(tmp_path / f"{name}.safetensors", {"b": torch.ones(2), "a": torch.zeros(3)}, texts)
    assert (tmp_path / "x.safetensors").read_bytes() == (tmp_path / "y.safetensors").read_bytes()
    header = read_header(tmp_path / "x.safetensors")
    assert list(header[METADATA].items()) == sorted({"format": "pt", **metadata}.items())
    assert torch.equal(load_tensors(tmp_path / "x.safetensors")["b"], torch.ones(2))


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "x.safetensors"
    save_tensors(path, {"a": torch.ones(2)})

    def fail(tensors, filename, metadata):
        with open(filename, "wb") as file:
            file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("safetensors.torch.save_file", fail)
    with pytest.raises(OSError, match="No space"):
        save_tensors(path, {"a": torch.zeros(2)})
    assert torch.equal(load_tensors(path)["a"], torch.ones(2))
    assert list(tmp_path.iterdir()) == [path]


MALFORMED = {
    "shorter than its length field": (b"{}", b"", 10**6, "claims 1000000 bytes"),
    "absurd length": (b"{}", b"", 2**63, "claims"),
    "not JSON": (b"{oops}", b"", None, "not readable JSON"),
    "not UTF-8": (b'{"\xff": 1}', b"", None, "not readable JSON"),
    "nested too deep": (b'{"a":' + b"[" * 100_000, b"", None, "not readable JSON"),
    "a name twice": (b'{"a":%b,"a":%b}' % ((json.dumps(entry()).encode(),) * 2), bytes(8), None, "occurs twice"),
    "a field twice": (b'{"a":{"dtype":"F32","dtype":"U8","shape":[2],"data_offsets":[0,8]}}', bytes(8), None, "twice"),
    "data cut off": ({"a": entry()}, bytes(5), None, "need 8 bytes, but it has 5"),
    "data too long": ({"a": entry()}, bytes(9), None, "need 8 bytes, but it has 9"),
    "overlap": ({"a": entry(), "b": entry(4, 12)}, bytes(12), None, "does not start where"),
    "gap": ({"a": entry(), "b": entry(12, 20)}, bytes(20), None, "does not start where"),
    "gap at the start": ({"a": entry(4, 12)}, bytes(12), None, "does not start where"),
    "backwards": ({"a": entry(8, 0)}, bytes(8), None, "does not match its offsets"),
    "negative place": ({"a": entry(-8, 0)}, bytes(8), None, "are not integers"),
    "shape too large": ({"a": entry(shape=(3,))}, bytes(8), None, "does not match its offsets"),
    "shape overflowing": ({"a": entry(shape=(2**62, 4, 2))}, bytes(8), None, "does not match its offsets"),
    "shape of fractions": ({"a": entry(shape=(1.5,))}, bytes(8), None, "are not integers"),
    "shape of truths": ({"a": entry(end=4, shape=(True,))}, bytes(4), None, "are not integers"),
    "unknown type": ({"a": entry(dtype="F31")}, bytes(8), None, "unknown dtype 'F31'"),
    "type that is a list": ({"a": entry(dtype=["F32"])}, bytes(8), None, "unknown dtype"),
    "a field missing": ({"a": {"dtype": "F32", "shape": [2]}}, bytes(8), None, "lacks a dtype"),
    "an entry that is a number": ({"a": 3}, b"", None, "lacks a dtype"),
    "half of a surrogate pair in a name": (
        b'{"\\ud800":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}',
        bytes(8),
        None,
        "not readable JSON",
    ),
    "half of a surrogate pair in the metadata": (b'{"__metadata__":{"a":"\\udc00"}}', b"", None, "not readable JSON"),
    "metadata of numbers": ({METADATA: {"step": 3}}, b"", None, "not a map of strings"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_file_is_refused_in_one_sentence_with_its_path(tmp_path, case):
    header, data, length, reason = MALFORMED[case]
    path = write_safetensors(tmp_path / "bad.safetensors", header, data, length)
    with pytest.raises(WeightsError) as caught:
        load_tensors(path)
    message = str(caught.value)
    assert isinstance(caught.value, UserError)
    assert str(path) in message
    assert reason in message
    assert message.endswith(".")
    assert "\n" not in message


def test_what_the_library_alone_refuses_is_explained_like_all_else(tmp_path, monkeypatch):
    path = write_safetensors(tmp_path / "bad.safetensors", {"a": entry()}, bytes(4))
    monkeypatch.setattr(safe, "read_header", lambda path: {"a": entry()})
    with pytest.raises(WeightsError, match=r"bad\.safetensors': is a damaged safetensors file, .+; download"):
        load_tensors(path)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e5m2])
def test_an_adapter_with_a_value_that_is_not_finite_is_refused_by_file_and_tensor(tmp_path, value, dtype):
    save_tensors(tmp_path / "x.safetensors", {"a": torch.ones(2), "b": torch.tensor([1.0, value]).to(dtype)})
    with pytest.raises(WeightsError, match=r"x\.safetensors': its tensor 'b' holds NaN or infinity"):
        load_finite(tmp_path / "x.safetensors")
    assert load_finite(tmp_path / "x.safetensors", ["a"]).keys() == {"a"}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is empty"),
        (b"abc", "is not a safetensors file"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n", "Git LFS pointer"),
        (b"\n<!DOCTYPE html><html><body>Sign in</body></html>", "a web page"),
        (b"GGUF" + bytes(60), "a GGUF file"),
        (b"PK\x03\x04" + bytes(60), "a pickled checkpoint"),
        (pickle.dumps({"a": 1}, protocol=2) + bytes(60), "a pickled checkpoint"),
    ],
)
def test_a_file_of_another_format_is_called_by_its_name(tmp_path, content, reason):
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(WeightsError, match=reason):
        read_header(path)


def test_a_missing_file_is_refused_with_its_path(tmp_path):
    with pytest.raises(WeightsError, match=r"nowhere\.safetensors"):
        load_tensors(tmp_path / "nowhere.safetensors")
    with pytest.raises(WeightsError, match=r"nowhere\.ckpt"):
        load_tensors(tmp_path / "nowhere.ckpt")


@pytest.mark.parametrize("suffix", [".ckpt", ".pt", ".pth", ".bin"])
def test_a_plain_checkpoint_is_unwrapped_and_its_tensors_loaded(tmp_path, suffix):
    torch.save({"state_dict": {"a": torch.ones(2)}, "global_step": 5}, tmp_path / f"x{suffix}")
    loaded = load_tensors(tmp_path / f"x{suffix}")
    assert list(loaded) == ["a"]
    assert torch.equal(loaded["a"], torch.ones(2))
    check_pickle(tmp_path / f"x{suffix}")


@pytest.mark.parametrize("legacy", [False, True])
def test_a_malicious_checkpoint_is_refused_and_never_runs(tmp_path, legacy):
    path, canary = tmp_path / "x.ckpt", tmp_path / "canary"
    torch.save({"a": torch.ones(2), "b": Canary(canary)}, path, _use_new_zipfile_serialization=not legacy)
    for refuse in (load_tensors, check_pickle):
        with pytest.raises(WeightsError, match="could run code"):
            refuse(path)
    assert not canary.exists()
    torch.load(path, weights_only=False)  # the canary is alive: loaded carelessly, it does run
    assert canary.exists()


@pytest.mark.parametrize("content", [b"", b"junk", b"PK\x03\x04junk", b"\x80\x02junk."])
def test_a_damaged_checkpoint_is_refused(tmp_path, content):
    (tmp_path / "x.pt").write_bytes(content)
    for refuse in (load_tensors, check_pickle):
        with pytest.raises(WeightsError, match="damaged"):
            refuse(tmp_path / "x.pt")


def test_a_checkpoint_without_named_tensors_is_refused(tmp_path):
    torch.save([torch.ones(2)], tmp_path / "x.pt")
    with pytest.raises(WeightsError, match="no named tensors"):
        load_tensors(tmp_path / "x.pt")


def test_looking_into_files_does_not_import_torch():
    code = "import sys, modules.weights.inspect, modules.weights.safe; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], check=False).returncode == 0
