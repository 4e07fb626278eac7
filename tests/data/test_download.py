"""Downloads survive cut connections and killed processes; tested against a local server that misbehaves on purpose."""

import dataclasses
import hashlib
import random
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from privfl.data import catalog, fetch, files, info, load_dataset
from privfl.data.download import ResumableDownloader, RichProgress
from privfl.data.files import DataFile, Layout, locate
from privfl.errors import DataError

CONTENT = random.Random(1).randbytes(300_000)
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class Server(ThreadingHTTPServer):
    """Serves ``content``; ``cuts`` lists after how many bytes the next answers break off."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.content, self.cuts, self.ranges, self.asked = CONTENT, [], True, []

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}/file.bin"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        server = self.server
        asked = self.headers.get("Range")
        server.asked.append(asked)
        if self.path == "/absent":
            return self.send_error(404)
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and server.ranges else 0
        if start >= len(server.content) and start:
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(server.content)}")
            self.send_header("Content-Length", "0")
            return self.end_headers()
        body = server.content[start:]
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(server.content) - 1}/{len(server.content)}")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: server.cuts.pop(0)] if server.cuts else body)

    def log_message(self, *arguments):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")  # a proxy of the network's could not reach it
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache folder, and no PRIVFL_DATA."""
    monkeypatch.delenv("PRIVFL_DATA", raising=False)
    monkeypatch.setattr(files, "cache_folder", lambda: tmp_path / "cache")
    monkeypatch.setattr("privfl.data.download.time.sleep", lambda seconds: None)
    return tmp_path / "cache"


class Counter:
    """A progress bar that adds up."""

    def __init__(self):
        self.total, self.done = None, 0

    def update(self, n):
        self.done += n

    def reset(self):
        self.done = 0

    def close(self):
        pass


def layouts(server, **changes):
    fields = {"path": "set/file.bin", "size": len(CONTENT), "sha256": SHA256, "url": server.url}
    return (Layout("raw", (DataFile(**(fields | changes)),)),)


def test_a_download_that_is_cut_off_goes_on_where_it_stopped(server, tmp_path):
    server.cuts = [100_000, 50_000]
    progress = Counter()
    ResumableDownloader(tmp_path / "p", progress, wait=0)(server.url, str(tmp_path / "out"), None)
    assert (tmp_path / "out").read_bytes() == CONTENT
    assert server.asked == [None, "bytes=100000-", "bytes=150000-"]
    assert (progress.done, progress.total) == (300_000, 300_000)
    assert not (tmp_path / "p").exists()


def test_a_connection_may_break_any_number_of_times_as_long_as_bytes_arrive(server, tmp_path):
    server.cuts = [20_000] * 12
    ResumableDownloader(tmp_path / "p", attempts=2, wait=0)(server.url, str(tmp_path / "out"), None)
    assert (tmp_path / "out").read_bytes() == CONTENT
    assert len(server.asked) == 13


def test_a_server_that_ignores_ranges_is_read_from_the_start(server, tmp_path):
    server.cuts, server.ranges = [100_000], False
    ResumableDownloader(tmp_path / "p", wait=0)(server.url, str(tmp_path / "out"), None)
    assert (tmp_path / "out").read_bytes() == CONTENT


def test_a_part_that_is_already_whole_is_accepted_and_one_that_is_too_long_is_not(server, tmp_path):
    for left_over in (CONTENT, CONTENT + b"x"):
        (tmp_path / "p").write_bytes(left_over)
        ResumableDownloader(tmp_path / "p", wait=0)(server.url, str(tmp_path / "out"), None)
        assert (tmp_path / "out").read_bytes() == CONTENT
    assert server.asked == ["bytes=300000-", "bytes=300001-", None]


def test_giving_up_keeps_what_came_and_a_later_run_goes_on_from_there(server, cache):
    server.cuts = [1000, 0, 0, 0]
    with pytest.raises(DataError, match=r"demo needs set/file.bin, .*1,000 bytes are kept.*set PRIVFL_DATA"):
        locate("demo", layouts(server))
    assert (cache / "set/file.bin.part").read_bytes() == CONTENT[:1000]
    located = locate("demo", layouts(server))
    assert located.paths["file.bin"].read_bytes() == CONTENT
    assert server.asked[-1] == "bytes=1000-"
    assert not (cache / "set/file.bin.part").exists()


def test_a_cached_file_is_not_downloaded_again_unless_it_was_damaged(server, cache):
    path = locate("demo", layouts(server)).paths["file.bin"]
    locate("demo", layouts(server))
    assert len(server.asked) == 1
    path.write_bytes(CONTENT[:-1] + b"!")
    assert locate("demo", layouts(server)).paths["file.bin"].read_bytes() == CONTENT
    assert len(server.asked) == 2


def test_what_a_server_sends_instead_of_the_published_file_is_refused_and_not_kept(server, cache):
    server.content = CONTENT[::-1]
    with pytest.raises(DataError, match=r"is not the published file .*hash"):
        locate("demo", layouts(server))
    assert not (cache / "set/file.bin").exists()
    server.content = CONTENT
    assert locate("demo", layouts(server)).paths["file.bin"].read_bytes() == CONTENT


def test_a_refusal_by_the_server_is_final_and_named(server, cache):
    with pytest.raises(DataError, match=r"could not be downloaded \(HTTPError: 404"):
        locate("demo", layouts(server, url=server.url.replace("file.bin", "absent")))
    assert len(server.asked) == 1


def test_without_a_network_one_sentence_names_the_file_its_address_and_the_mend(server, cache):
    closed = Server()
    closed.server_close()
    with pytest.raises(DataError) as error:
        locate("demo", layouts(closed))
    text = str(error.value)
    assert "demo needs set/file.bin" in text
    assert closed.url in text
    assert "set PRIVFL_DATA to a folder that holds the file" in text
    assert "\n" not in text
    assert "0x" not in text


def test_a_dataset_without_a_download_says_which_file_to_bring(cache):
    with pytest.raises(DataError, match=r"own has no download; set PRIVFL_DATA to a folder that holds a/b\.csv"):
        locate("own", (Layout("csv", (DataFile("a/b.csv"),)),))


def test_fetch_reads_a_file_without_a_published_hash_once_to_check_it(server, cache, monkeypatch):
    """The heart files stand in for any dataset whose makers publish counts but no hash."""
    server.content = b"63,1,1,145,233,1,2,150,0,2.3,3,0,6,0\n" * 5
    entry = info("heart-disease")
    sites = ("cleveland", "hungarian", "switzerland", "va")
    anonymous = Layout("uci", tuple(DataFile(f"h/processed.{site}.data", url=server.url) for site in sites))
    monkeypatch.setattr(catalog, "_ALL", (dataclasses.replace(entry, layouts=(anonymous,)),))
    paths = fetch("heart-disease")
    assert [path.name for path in paths] == [f"processed.{site}.data" for site in sites]
    assert len(load_dataset("heart-disease")) == 16
    assert len(server.asked) == 4
    paths[2].write_bytes(b"63,1,1\n")
    with pytest.raises(DataError, match="line 1, has 3 fields"):
        fetch("heart-disease")


def test_the_progress_bar_has_the_interface_that_pooch_expects():
    with RichProgress("file") as bar:
        assert bar.total is None
        bar.total = 10
        bar.update(4)
        bar.reset()
        bar.update(10)
        assert (bar.total, bar._bar.tasks[0].completed) == (10, 10)
